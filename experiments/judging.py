"""Ground truth for planted votes, in addition to the environment's label: by a planner with full knowledge."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from environments.household.catalogue import DEVICE
from environments.household.episode import WORDINGS
from environments.household.params import world_of
from environments.household.planner import plan
from environments.household.world import NOTHING, NOWHERE, State, World
from services.reward.scorers.oracle import Sign, planted
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, Task, Trajectory, TrajectoryVotes

Asks = Literal["sensible", "progress", "best", "difference"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A planted judge.

    Attributes:
        asks: what a vote says of an action. `sensible`: +1 if the scripted expert, knowing what was seen, might do it.
            `progress`: +1 if the shortest plan, by a planner that knows everything, became shorter. `best`: +1 if it became shorter
            than ever in the episode. All others -1. `difference`: by how much it became shorter, -1, 0 or +1.
        right: the chance that a vote is the truth. Otherwise it is the opposite, and of 0 a sign by lot.
    """

    asks: Asks = "progress"
    right: float = 1.0


class Truth:
    """Ground truth of the steps of a trajectory. Plans are kept task by task, since rollouts come to the same states.

    Args:
        read: a task by its id.
    """

    def __init__(self, read: Callable[[str], Awaitable[Task]]) -> None:
        self._read = read
        self._known: dict[str, tuple[World, dict[State, float]]] = {}  # by task

    async def of(self, trajectory: Trajectory, asks: Asks) -> list[Sign]:
        """One sign a step."""
        if asks == "sensible":
            return [1 if step.label == 1 else -1 for step in trajectory.steps]
        if trajectory.task_id not in self._known:
            task = await self._read(trajectory.task_id)
            self._known[trajectory.task_id] = world_of(task.params), {}
        world, known = self._known[trajectory.task_id]
        return signs(distances(world, (step.action for step in trajectory.steps), known), asks)

    async def labelled(self, trajectory: Trajectory) -> Trajectory:
        """With the labels that the environment's option `labels = "progress"` gives, which plans anew at every step."""
        found = await self.of(trajectory, "best")
        steps = [
            step.model_copy(update={"label": sign})
            for step, sign in zip(trajectory.steps, found, strict=True)
        ]
        return trajectory.model_copy(update={"steps": tuple(steps)})


class PlantedJudge:
    """A step scorer that plants what `planted` says; see `services.reward.scorers.oracle` for how often it is right."""

    def __init__(self, planted: Planted, truth: Truth) -> None:
        self._planted, self._truth = planted, truth

    async def __call__(
        self,
        trajectory: Trajectory,
        task: JudgeTask,
        generate_many: GenerateMany,  # noqa: ARG002 (it asks no model)
    ) -> TrajectoryVotes:
        """Vote on every step."""
        right = task.model_copy(update={"accuracy": self._planted.right})
        found = await self._truth.of(trajectory, self._planted.asks)
        return planted(trajectory, right, dict(enumerate(found)))


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
