"""Ground truth for planted votes, in addition to the environment's label: by a planner with full knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import cast, get_args

from environments.household.catalogue import DEVICE
from environments.household.episode import WORDINGS
from environments.household.params import world_of
from environments.household.planner import plan
from environments.household.world import NOTHING, NOWHERE, State, World
from experiments.loop import read_task
from experiments.settings import Asks
from services.reward.scorers.oracle import Sign, planted
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, Trajectory, TrajectoryVotes


@cache
def _world(task_id: str) -> tuple[World, dict[State, float]]:
    """Return the world of a task, and what is planned in it: rollouts come to the same states."""
    return world_of(read_task(task_id).params), {}


@dataclass(frozen=True, slots=True)
class PlantedJudge:
    """A step scorer that votes by the planner; `world` gives a task's world and what is planned in it."""

    asks: Asks
    right: float = 1.0
    world: Callable[[str], tuple[World, dict[State, float]]] = _world

    async def __call__(
        self,
        trajectory: Trajectory,
        task: JudgeTask,
        generate_many: GenerateMany,  # noqa: ARG002 (it asks no model)
    ) -> TrajectoryVotes:
        """Vote on every step; `services.reward.scorers.oracle` defines how often a vote is right."""
        job = task.model_copy(update={"accuracy": self.right})
        return planted(trajectory, job, dict(enumerate(self.truth(trajectory))))

    def truth(self, trajectory: Trajectory) -> list[Sign]:
        """Return one sign a step."""
        if self.asks == "sensible":
            return [1 if step.label == 1 else -1 for step in trajectory.steps]
        world, known = self.world(trajectory.task_id)
        actions = (step.action for step in trajectory.steps)
        return signs(distances(world, actions, known), self.asks)


def __getattr__(name: str) -> PlantedJudge:
    """Return the judge `progress_75`, which is right with .75 about `progress`, and others like it."""
    asks, _, right = name.rpartition("_")
    if asks not in get_args(Asks) or not right.isdigit():
        raise AttributeError(f"{__name__}: given {name!r}, expected a name like 'progress_75'")
    return PlantedJudge(cast("Asks", asks), int(right) / 100)


def distances(
    world: World, actions: Iterable[str], known: dict[State, float] | None = None
) -> list[float]:
    """Commands of a shortest plan at the start and after each action of an episode in terse words; infinite without a plan.

    `known` keeps what was planned before in this world: a plan tells how far each state on its way is.
    """
    known, wording, state = {} if known is None else known, WORDINGS["terse"], world.start()
    states = [state]
    for action in actions:
        command = wording.offered(world, state).get(action)
        if command is not None:
            state = world.apply(state, command) or state
        states.append(state)
    keys = [_what_matters(world, state) for state in states]
    for state, key in zip(states, keys, strict=True):
        if key in known:
            continue
        found = plan(world, state=state)
        known[key] = math.inf if found is None else float(len(found))
        for done, command in enumerate(found or (), start=1):
            state = world.apply(state, command) or state
            known[_what_matters(world, state)] = float(len(found or ()) - done)
    return [known[key] for key in keys]


def _what_matters(world: World, state: State) -> State:
    """Return the state without what no plan asks for: other objects and their treatments, doors and places that play no part."""
    goal = world.goal
    if goal.type == "look":
        return state
    ours = [i for i, thing in enumerate(world.objects) if thing.kind == goal.object]
    useful = {goal.target, DEVICE.get(goal.type, goal.target)}
    places = {i for i, thing in enumerate(world.receptacles) if thing.kind in useful}
    places |= {state.where[i] for i in ours} - {NOWHERE}
    at, wrong = state.at, state.held != NOTHING and state.held not in ours
    if at != NOWHERE and at not in places:  # a wrong object can be put down there, door open
        at = -2 - world.is_open(state, at) if wrong else NOWHERE
    mask = sum(1 << i for i in ours)
    return State(
        at=at,
        held=-2 if wrong else state.held,
        where=tuple(state.where[i] for i in ours),
        opened=state.opened & sum(1 << i for i in places),
        clean=state.clean & mask,
        hot=state.hot & mask,
        cold=state.cold & mask,
    )


def signs(left: list[float], asks: Asks) -> list[Sign]:
    """Return what is true of each step, given what was left to do before the first and after each."""
    if asks == "difference":
        return [
            1 if after < before else -1 if after > before else 0 for before, after in pairwise(left)
        ]
    best, found = left[0], list[Sign]()
    for before, after in pairwise(left):
        found.append(1 if after < (best if asks == "best" else before) else -1)
        best = min(best, after)
    return found
