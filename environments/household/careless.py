"""A careless player of the household: it searches as the expert does, and errs in a systematic way.

In some episodes it forgets to clean, heat or cool and carries the object to the goal as it is; at some steps it gives a random
command. A tiny policy imitates it first, so that training has something to improve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

from environments.household.episode import Episode
from environments.household.params import PlayOptions
from environments.household.planner import Expert
from environments.household.wording import announce
from environments.household.world import TREATMENTS, Command, Goal, Verb, World

SMALL: Final[dict[str, Any]] = {
    "receptacles": [4, 6],
    "distractors": [1, 3],
    "goals": ["place", "clean", "heat", "cool"],
    "lamps": 0.0,
    "horizon": 14,
    "objects": ["mug", "plate", "apple", "potato", "cup", "egg", "tomato", "bowl"],
    "kinds": [
        "cabinet", "drawer", "fridge", "microwave", "sinkbasin", "countertop", "shelf", "diningtable",
    ],
}  # fmt: skip
"""Options of games that a model of 0.1 M parameters can learn; three of the four types of goals need a treatment."""

_PLACE_VERBS: Final[tuple[Verb, ...]] = ("go", "open", "close")
_HANDLING: Final = ("take", *TREATMENTS)
_THING_VERBS: Final[tuple[Verb, ...]] = ("take", "put", "clean", "heat", "cool")


@dataclass(frozen=True, kw_only=True, slots=True)
class Carelessness:
    """Shares: of the steps that are random commands, of the treatments that are forgotten, of inadmissible random commands, and of the others that take or treat something if they can."""

    random_rate: float = 0.12
    forget_rate: float = 0.6
    inadmissible_share: float = 0.3
    handling_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One played episode as a chat.

    `messages` are role/content dicts: an optional system message, then user (observation) and assistant (response) in
    turn, ending with the last observation. `labels[i]` is the environment's label of response i, `noisy[i]` whether it is
    random. `forgetful` is whether this episode forgot the treatment.
    """

    instruction: str
    messages: tuple[dict[str, str], ...]
    labels: tuple[Literal[-1, 1], ...]
    noisy: tuple[bool, ...]
    success: bool
    forgetful: bool


def demonstrate(
    world: World, options: PlayOptions, rng: Random, careless: Carelessness
) -> Demonstration:
    """Play a game to its end."""
    goal, text = world.goal, announce(world)
    episode = Episode(world, options, text)
    forgetful = goal.type in TREATMENTS and rng.random() < careless.forget_rate
    pursued = Goal("place", goal.object, goal.target) if forgetful else goal
    expert = Expert(world, pursued)
    reset = episode.start()
    chat = [{"role": "system", "content": reset.system}] if reset.system else []
    chat.append({"role": "user", "content": reset.observation.text})
    labels: list[Literal[-1, 1]] = []
    noisy: list[bool] = []
    while not episode.done:
        noisy.append(rng.random() < careless.random_rate)
        if noisy[-1]:
            response = _at_random(episode, rng, careless)
        else:
            response = _intended(episode, rng, expert, pursued)
        result = episode.play(response)
        assert result.label is not None
        labels.append(result.label)
        chat.append({"role": "assistant", "content": response})
        chat.append({"role": "user", "content": result.observation.text})
        expert.see(episode.state)
    return Demonstration(text, tuple(chat), tuple(labels), tuple(noisy), episode.success, forgetful)


def _intended(episode: Episode, rng: Random, expert: Expert, goal: Goal) -> str:
    """Return the expert's response; once it believes the task done, it wanders about."""
    done = episode.world.won(episode.state, goal)
    command = None if done else expert.act(episode.state)
    if command is not None:
        return episode.response(episode.say(command))
    moves = [text for text in episode.commands() if text.startswith("go ")]
    return episode.response(rng.choice(moves or episode.commands()))


def _at_random(episode: Episode, rng: Random, careless: Carelessness) -> str:
    """Return a random command, admissible or not."""
    admissible: Sequence[str] = episode.commands()
    if rng.random() >= careless.inadmissible_share:
        if careless.handling_share and rng.random() < careless.handling_share:
            handling = [text for text in admissible if text.split()[0] in _HANDLING]
            admissible = handling or admissible
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
