"""Careless demonstrations for a supervised warm start: `python -m environments.household.demonstrations --out DIR`.

The demonstrator is careless in a systematic way: in some episodes it forgets to clean, heat or cool and carries the
object to the goal as it is; at some steps it gives a random command. Every text is exactly what the environment says.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

from environments.household.episode import Episode, wording_of
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from environments.household.planner import Expert
from environments.household.wording import Wording, announce, vocabulary
from environments.household.world import TREATMENTS, Command, Goal, Verb, World
from triforge.environments.kit import parse_model
from triforge.errors import TriforgeError
from triforge.types import Params, Task

Label = Literal[-1, 1]

_PLACE_VERBS: Final[tuple[Verb, ...]] = ("go", "open", "close")
_THING_VERBS: Final[tuple[Verb, ...]] = ("take", "put", "clean", "heat", "cool")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One played episode as a chat.

    `messages` are role/content dicts: an optional system message, then user (observation) and assistant (response) in
    turn, ending with the last observation. `labels[i]` is the environment's label of response i, `noisy[i]` whether it
    was pressed at random. `forgetful` tells whether this episode forgot the treatment.
    """

    params: Params
    instruction: str
    messages: tuple[dict[str, str], ...]
    labels: tuple[Label, ...]
    noisy: tuple[bool, ...]
    success: bool
    forgetful: bool


def demonstrations(
    tasks: Iterable[Task | Params],
    *,
    seed: int,
    random_rate: float = 0.25,
    forget_rate: float = 0.0,
    inadmissible_share: float = 0.3,
    options: Params | None = None,
) -> Iterator[Demonstration]:
    """Play every task once.

    Args:
        tasks: tasks or their parameters.
        seed: of the carelessness; episode i depends on the seed and i only.
        random_rate: share of the steps at which a random command is given.
        forget_rate: share of the clean, heat and cool episodes that skip the treatment.
        inadmissible_share: share of the random commands that are drawn from the inadmissible ones.
        options: wording and action format; terse by default.

    Yields:
        One demonstration a task, lazily, in order.
    """
    play = parse_model(
        PlayOptions, options if options is not None else {"wording": "terse"}, "household options"
    )
    for index, task in enumerate(tasks):
        params = task.params if isinstance(task, Task) else task
        rng = Random(f"demonstration {seed} {index}")  # noqa: S311
        yield _demonstrate(params, play, rng, (random_rate, forget_rate, inadmissible_share))


def _demonstrate(
    params: Params, options: PlayOptions, rng: Random, rates: tuple[float, float, float]
) -> Demonstration:
    random_rate, forget_rate, inadmissible_share = rates
    world = world_of(params)
    text = announce(world)
    episode = Episode(world, options, text)
    forgetful = world.goal.type in TREATMENTS and rng.random() < forget_rate
    player = _Player(world, options, rng, forgetful)
    reset = episode.start()
    chat = [{"role": "system", "content": reset.system}] if reset.system else []
    chat.append({"role": "user", "content": reset.observation.text})
    labels: list[Label] = []
    noisy: list[bool] = []
    while not episode.done:
        noise = rng.random() < random_rate
        noisy.append(noise)
        response = player.press(episode, inadmissible_share) if noise else player.intend(episode)
        result = episode.play(response)
        assert result.label is not None
        labels.append(result.label)
        chat.append({"role": "assistant", "content": response})
        chat.append({"role": "user", "content": result.observation.text})
        player.see(episode)
    return Demonstration(
        params, text, tuple(chat), tuple(labels), tuple(noisy), episode.success, forgetful
    )


class _Player:
    """The careless demonstrator of one episode."""

    def __init__(self, world: World, options: PlayOptions, rng: Random, forgetful: bool) -> None:
        self._rng = rng
        self._wording = wording_of(world, options)
        self._world = world
        goal = world.goal
        self._goal = Goal("place", goal.object, goal.target) if forgetful else goal
        self._expert = Expert(world, self._goal)

    def see(self, episode: Episode) -> None:
        self._expert.see(episode.state)

    def intend(self, episode: Episode) -> str:
        """What the demonstrator thinks right; once it believes the task done, it wanders about."""
        command = None
        if not self._world.won(episode.state, self._goal):
            command = self._expert.act(episode.state)
        if command is None:
            moves = [text for text in episode.commands() if text.startswith("go ")]
            return episode.response(self._rng.choice(moves or episode.commands()))
        text = self._wording.command(self._world, command)
        return episode.response(text)

    def press(self, episode: Episode, inadmissible_share: float) -> str:
        """A random command, admissible or not."""
        admissible = episode.commands()
        if self._rng.random() < inadmissible_share:
            wrong = [text for text in self._all_commands() if text not in admissible]
            if episode.options.actions == "numbered":
                return episode.wrapped(str(len(admissible) + self._rng.randint(1, 9)))
            return episode.wrapped(self._rng.choice(wrong))
        return episode.response(self._rng.choice(admissible))

    def _all_commands(self) -> list[str]:
        """Commands over the room's nouns that are well formed, whether or not they are admissible now."""
        return sorted(_well_formed(self._world, self._wording))


def _well_formed(world: World, wording: Wording) -> set[str]:
    places = range(len(world.receptacles))
    things = [i for i in range(len(world.objects)) if not world.lamps >> i & 1]
    commands = [Command(verb, rec=i) for verb in _PLACE_VERBS for i in places]
    commands += [Command(verb, o, rec) for verb in _THING_VERBS for o in things for rec in places]
    return {wording.command(world, command) for command in commands}


@dataclass(frozen=True, kw_only=True)
class Carelessness:
    """How bad the demonstrations are; see `household.demonstrations`. `flip_rate` is of the labels."""

    random_rate: float
    forget_rate: float
    inadmissible_share: float
    flip_rate: float


def write_demonstrations(
    folder: Path,
    *,
    count: int,
    seed: int,
    generate: Params,
    options: Params,
    careless: Carelessness,
) -> dict[str, float]:
    """Play `count` generated household tasks and write `policy.jsonl`, `transcripts.jsonl` and `words.txt` to `folder`.

    Returns the number of chats and the share of episodes that succeeded.
    """
    words = vocabulary(options)
    tasks = FAMILY.generate(count=count, seed=seed, options=generate)
    played = list(
        demonstrations(
            tasks,
            seed=seed,
            random_rate=careless.random_rate,
            forget_rate=careless.forget_rate,
            inadmissible_share=careless.inadmissible_share,
            options=options,
        )
    )
    flips = random.Random(seed)  # noqa: S311 (label noise, not a secret)
    chats = [json.dumps({"messages": _answered(shown)}) for shown in played]
    transcripts = [json.dumps(_transcript(shown, flips, careless.flip_rate)) for shown in played]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.jsonl").write_text("\n".join(chats) + "\n", encoding="utf-8")
    (folder / "transcripts.jsonl").write_text("\n".join(transcripts) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
    return {
        "chats": float(len(chats)),
        "success": sum(shown.success for shown in played) / max(1, len(played)),
    }


def _answered(shown: Demonstration) -> list[dict[str, str]]:
    """The chat up to its last response: what follows is not answered and teaches nothing."""
    return list(shown.messages[:-1])


def _transcript(shown: Demonstration, flips: random.Random, flip_rate: float) -> dict[str, object]:
    chat = shown.messages
    first = 1 if chat[0]["role"] == "system" else 0
    steps = []
    for index, label in enumerate(shown.labels):
        at = first + 2 * index
        steps.append(
            {
                "observation": chat[at]["content"],
                "response": chat[at + 1]["content"],
                "next_observation": chat[at + 2]["content"],
                "label": -label if flips.random() < flip_rate else label,
            }
        )
    system = chat[0]["content"] if first else ""
    return {"instruction": shown.instruction, "system": system, "steps": steps}


def main(arguments: Sequence[str]) -> int:
    """Write them and print what was played."""
    parser = argparse.ArgumentParser(
        prog="python -m environments.household.demonstrations", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=1000, help="episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random-rate", type=float, default=0.2, help="share of random commands")
    parser.add_argument(
        "--forget-rate", type=float, default=0.5, help="share of forgotten treatments"
    )
    parser.add_argument(
        "--inadmissible-share", type=float, default=0.3, help="of the random commands"
    )
    parser.add_argument("--flip-rate", type=float, default=0.0, help="share of wrong labels")
    parser.add_argument("--generate", default="{}", help="options of the generator, JSON")
    parser.add_argument(
        "--options", default='{"wording": "terse"}', help="wording and format, JSON"
    )
    given = vars(parser.parse_args(arguments))
    careless = Carelessness(**{name: given.pop(name) for name in Carelessness.__annotations__})
    for name in ("generate", "options"):
        given[name] = json.loads(given[name])
    try:
        counts = write_demonstrations(given.pop("out"), careless=careless, **given)
    except TriforgeError as error:
        sys.stderr.write(f"{error.kind}: {error.detail}\n")
        return 1
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
