"""A careless player of the household: it searches as the expert does, and errs in a systematic way.

In some episodes it forgets to clean, heat or cool and carries the object to the goal as it is, or first does what another task would
ask; at some steps it gives a random command. A tiny policy imitates it first, so that training has something to improve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal

from environments.household.catalogue import DEVICE, GoalType
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

_TREATED: Final[tuple[GoalType, ...]] = ("clean", "heat", "cool")
_PLACE_VERBS: Final[tuple[Verb, ...]] = ("go", "open", "close")
_THING_VERBS: Final[tuple[Verb, ...]] = ("take", "put", "clean", "heat", "cool")


@dataclass(frozen=True, kw_only=True, slots=True)
class Carelessness:
    """Shares: of the steps that are random commands, of the treatments that are forgotten, of inadmissible random commands.

    `confuse_rate` is the share of the episodes that begin with another goal: another treatment, object or place, by lot. The player
    remembers the task when it has done that, or has treated the object of its own goal.
    """

    random_rate: float = 0.12
    forget_rate: float = 0.6
    inadmissible_share: float = 0.3
    confuse_rate: float = 0.0


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
    confused = careless.confuse_rate > 0.0 and rng.random() < careless.confuse_rate
    goals = [_other_goal(world, rng), pursued] if confused else [pursued]
    experts = [Expert(world, one) for one in goals]
    reset = episode.start()
    chat = [{"role": "system", "content": reset.system}] if reset.system else []
    chat.append({"role": "user", "content": reset.observation.text})
    labels: list[Literal[-1, 1]] = []
    noisy: list[bool] = []
    while not episode.done:
        if goals[1:] and (world.won(episode.state, goals[0]) or _treated(world, episode, goals[0])):
            goals, experts = goals[1:], experts[1:]
        noisy.append(rng.random() < careless.random_rate)
        if noisy[-1]:
            response = _at_random(episode, rng, careless.inadmissible_share)
        else:
            response = _intended(episode, rng, experts[0], goals[0])
        result = episode.play(response)
        assert result.label is not None
        labels.append(result.label)
        chat.append({"role": "assistant", "content": response})
        chat.append({"role": "user", "content": result.observation.text})
        for expert in experts:
            expert.see(episode.state)
    return Demonstration(text, tuple(chat), tuple(labels), tuple(noisy), episode.success, forgetful)


def _other_goal(world: World, rng: Random) -> Goal:
    """Return the goal with another treatment or none (half of the time), another object or another place, as far as the room has them."""
    goal, things = world.goal, sorted({thing.kind for thing in world.objects})
    places = sorted({place.kind for place in world.receptacles})
    types: list[GoalType] = ["place", *(one for one in _TREATED if DEVICE[one] in places)]
    treated = [replace(goal, type=one) for one in types if one != goal.type]
    other = [replace(goal, object=one) for one in things if one != goal.object]
    elsewhere = [replace(goal, target=one) for one in places if one != goal.target]
    return rng.choice(rng.choice([one for one in (treated, treated, other, elsewhere) if one]))


def _treated(world: World, episode: Episode, goal: Goal) -> bool:
    things = range(len(world.objects))
    return goal.type in TREATMENTS and any(world.meets(episode.state, i, goal) for i in things)


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
