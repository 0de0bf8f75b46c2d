"""Careless demonstrations for a supervised warm start: `python -m demo.demonstrations --out DIR`.

The demonstrator is careless in a systematic way: in some episodes it forgets to clean, heat or cool and carries the object to
the goal as it is; at some steps it gives a random command. All texts are the environment's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from environments.household.episode import Episode
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from environments.household.planner import Expert
from environments.household.wording import announce, vocabulary
from environments.household.world import TREATMENTS, Command, Goal, Verb
from services.reward.prompts import Episode as JudgedEpisode
from services.reward.prompts import build_prompt
from services.reward.requests import StepText
from triforge.environments.kit import parse_model
from triforge.errors import TriforgeError
from triforge.rollout.verdicts import ANSWERS
from triforge.types import Params, Task

_TERSE: Final[Params] = {"wording": "terse"}
_PLACE_VERBS: Final[tuple[Verb, ...]] = ("go", "open", "close")
_THING_VERBS: Final[tuple[Verb, ...]] = ("take", "put", "clean", "heat", "cool")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One played episode as a chat.

    `messages` are role/content dicts: an optional system message, then user (observation) and assistant (response) in
    turn, ending with the last observation. `labels[i]` is the environment's label of response i, `noisy[i]` whether it is
    random. `forgetful` is whether this episode forgot the treatment.
    """

    params: Params
    instruction: str
    messages: tuple[dict[str, str], ...]
    labels: tuple[Literal[-1, 1], ...]
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
    """Play every task once, lazily.

    Args:
        seed: of the carelessness; episode i depends on the seed and i only.
        random_rate: share of the steps at which a random command is given.
        forget_rate: share of the clean, heat and cool episodes that skip the treatment.
        inadmissible_share: share of the random commands that are drawn from the inadmissible ones.
        options: wording and action format; terse by default.
    """
    play = parse_model(PlayOptions, _TERSE if options is None else options, "household options")
    for index, task in enumerate(tasks):
        params = task.params if isinstance(task, Task) else task
        rng = Random(f"demonstration {seed} {index}")  # noqa: S311
        yield _demonstrate(params, play, rng, (random_rate, forget_rate, inadmissible_share))


def _demonstrate(
    params: Params, options: PlayOptions, rng: Random, rates: tuple[float, float, float]
) -> Demonstration:
    random_rate, forget_rate, inadmissible_share = rates
    world = world_of(params)
    goal, text = world.goal, announce(world)
    episode = Episode(world, options, text)
    forgetful = goal.type in TREATMENTS and rng.random() < forget_rate
    pursued = Goal("place", goal.object, goal.target) if forgetful else goal
    expert = Expert(world, pursued)
    reset = episode.start()
    chat = [{"role": "system", "content": reset.system}] if reset.system else []
    chat.append({"role": "user", "content": reset.observation.text})
    labels: list[Literal[-1, 1]] = []
    noisy: list[bool] = []
    while not episode.done:
        noisy.append(rng.random() < random_rate)
        if noisy[-1]:
            response = _at_random(episode, rng, inadmissible_share)
        else:
            response = _intended(episode, rng, expert, pursued)
        result = episode.play(response)
        assert result.label is not None
        labels.append(result.label)
        chat.append({"role": "assistant", "content": response})
        chat.append({"role": "user", "content": result.observation.text})
        expert.see(episode.state)
    return Demonstration(
        params, text, tuple(chat), tuple(labels), tuple(noisy), episode.success, forgetful
    )


def _intended(episode: Episode, rng: Random, expert: Expert, goal: Goal) -> str:
    """Return the expert's response; once it believes the task done, it wanders about."""
    done = episode.world.won(episode.state, goal)
    command = None if done else expert.act(episode.state)
    if command is not None:
        return episode.response(episode.say(command))
    moves = [text for text in episode.commands() if text.startswith("go ")]
    return episode.response(rng.choice(moves or episode.commands()))


def _at_random(episode: Episode, rng: Random, inadmissible_share: float) -> str:
    """Return a random command, admissible or not."""
    admissible = episode.commands()
    if rng.random() >= inadmissible_share:
        return episode.response(rng.choice(admissible))
    wrong = [text for text in _all_commands(episode) if text not in admissible]
    return episode.response(rng.choice(wrong))


def _all_commands(episode: Episode) -> list[str]:
    """Return all well-formed commands over the room's nouns, admissible or not."""
    world = episode.world
    places = range(len(world.receptacles))
    things = [i for i in range(len(world.objects)) if not world.lamps >> i & 1]
    commands = [Command(verb, rec=i) for verb in _PLACE_VERBS for i in places]
    commands += [Command(v, o, rec) for v in _THING_VERBS for o in things for rec in places]
    return sorted({episode.say(command) for command in commands})


def write_demonstrations(
    folder: Path,
    *,
    count: int,
    seed: int,
    generate: Params,
    options: Params,
    flip_rate: float,
    judge: bool = False,
    **rates: float,
) -> dict[str, float]:
    """Play `count` generated tasks and write `policy.jsonl`, `transcripts.jsonl` and `words.txt` (empty unless terse).

    Return the number of chats and the share of successes. `rates` are those of `demonstrations`; `flip_rate` of the transcripts'
    labels are wrong. For a `judge`, `judge.jsonl` has a chat for each step.
    """
    terse = parse_model(PlayOptions, options, "household options").wording == "terse"
    words = vocabulary(options) if terse else []
    tasks = FAMILY.generate(count=count, seed=seed, options=generate)
    played = list(demonstrations(tasks, seed=seed, options=options, **rates))
    flips = Random(seed)  # noqa: S311 (label noise, not a secret)
    # a chat ends with its last response: the observation after it trains nothing
    chats = [json.dumps({"messages": list(shown.messages[:-1])}) for shown in played]
    transcripts = [_transcript(shown, flips, flip_rate) for shown in played]
    files = {"policy.jsonl": chats, "transcripts.jsonl": [*map(json.dumps, transcripts)]}
    if judge:
        judged = (chat for transcript in transcripts for chat in judge_chats(transcript))
        lines = (json.dumps({"messages": chat}, ensure_ascii=False) for chat in judged)
        files["judge.jsonl"] = [*lines]
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in files.items():
        (folder / name).write_text("\n".join(written) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
    succeeded = sum(shown.success for shown in played) / max(1, len(played))
    return {"chats": float(len(chats)), "success": succeeded}


def _transcript(shown: Demonstration, flips: Random, flip_rate: float) -> dict[str, Any]:
    chat = [message["content"] for message in shown.messages]
    system = chat.pop(0) if shown.messages[0]["role"] == "system" else ""
    steps = [
        {
            "observation": chat[2 * index],
            "response": chat[2 * index + 1],
            "next_observation": chat[2 * index + 2],
            "label": -label if flips.random() < flip_rate else label,
        }
        for index, label in enumerate(shown.labels)
    ]
    return {"instruction": shown.instruction, "system": system, "steps": steps}


def judge_chats(transcript: dict[str, Any]) -> Iterator[list[dict[str, object]]]:
    """Yield a chat for each step: the judge's terse prompt and the right vote."""
    labels = [step["label"] for step in transcript["steps"]]
    fields = StepText.model_fields
    steps = [StepText(**{k: v for k, v in s.items() if k in fields}) for s in transcript["steps"]]
    episode = JudgedEpisode(
        instruction=transcript["instruction"], steps=steps, system=transcript["system"]
    )
    for index, label in enumerate(labels):
        prompt = [message.model_dump() for message in build_prompt("terse", episode, index)]
        yield [*prompt, {"role": "assistant", "content": ANSWERS[label]}]


def main(arguments: Sequence[str]) -> int:
    """Write demonstrations and print their counts."""
    parser = argparse.ArgumentParser(prog="python -m demo.demonstrations", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write")
    add("--count", type=int, default=1000, help="episodes")
    add("--seed", type=int, default=0)
    add("--random-rate", type=float, default=0.2, help="share of random commands")
    add("--forget-rate", type=float, default=0.5, help="share of forgotten treatments")
    add("--inadmissible-share", type=float, default=0.3, help="of the random commands")
    add("--flip-rate", type=float, default=0.0, help="share of wrong labels")
    add("--judge", action="store_true", help="also write chats for a judge")
    add("--generate", type=json.loads, default={}, help="options of the generator, JSON")
    add("--options", type=json.loads, default=_TERSE, help="of the play, JSON")
    given = vars(parser.parse_args(arguments))
    try:
        counts = write_demonstrations(given.pop("out"), **given)
    except TriforgeError as error:
        sys.stderr.write(f"{error.kind}: {error.detail}\n")
        return 1
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
