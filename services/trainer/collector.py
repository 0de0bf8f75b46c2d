"""What a run has in flight, and the batch of its next step.

    fill ──► rounds are offered as the window allows, their groups sent
    batch ─► waits for the window's batch, has stale votes cast again, pins the batch in the run's notes
    free ──► the step is published: the window moves on; its snapshot goes into the transaction that commits the step

The notes hold the window. They are written when a round was offered and when a batch was chosen, so an orchestrator that
dies anywhere comes back to the same groups in flight, and to the same batch if it had chosen one: the learners are asked
only after that.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from services.trainer.in_flight import Collector
from services.trainer.parts import Parts
from services.trainer.rounds import Rounds
from triforge.broker import unit_tests_id
from triforge.config import RunConfig
from triforge.rollout.window import Offer, Window
from triforge.types import GroupTask, JudgedGroup, RunState, TrainedRole


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of a step, oldest first, and at which versions each was offered."""

    groups: list[JudgedGroup]
    offers: dict[str, Offer]
    measures: dict[str, float]


class Intake:
    """Keeps the window of one run and what it decides.

    Args:
        parts: stores.
        collector: plays and judges groups.
        run: the run as it was taken up.
        config: its config.
        notes: the orchestrator's notes on the run, shared with everybody who writes them; `window` is kept here.
    """

    def __init__(
        self,
        parts: Parts,
        collector: Collector,
        run: RunState,
        config: RunConfig,
        notes: dict[str, Any],
    ) -> None:
        self._parts, self._collector, self._run, self._config = parts, collector, run, config
        self._notes = notes
        self._rounds = Rounds(parts, run, config)
        self._tasks: dict[str, GroupTask] = {}
        saved = notes.get("window")
        self._window = Window.restore(saved) if saved else None
        self._restored = saved is not None

    async def hold(self, versions: dict[TrainedRole, int], step: int) -> None:
        """Take note of the versions that the run stands at before a step.

        If they have other numbers than the window knows (another run has served in between), everything in flight is
        played afresh. Groups of an orchestrator that died are looked for again.
        """
        policy, reward = versions["policy"], versions["reward"]
        run = self._config.run
        if self._window is None:
            self._window = Window(
                run.staleness_bound, run.steps, step=step, policy=policy, reward=reward,
                late=run.late_groups,
            )  # fmt: skip
        for role in versions:
            newest = await asyncio.to_thread(self._parts.store.newest_weights, self._run.id, role)
            self._collector.newest[role] = max(versions[role], newest)
        moved = self._window.versions != (policy, reward)
        if self._restored or moved:
            await self._recall(forget=moved)
        if moved:
            self._window.renumber(policy, reward)
            await self._note()
        if self._restored or moved:
            await self._send(list(self._window.offers))
        self._restored = False

    async def _recall(self, *, forget: bool) -> None:
        """Build the tasks of everything in flight again; `forget` what was played of them."""
        for number in sorted({offer.round for offer in self.window.offers.values()}):
            self._tasks |= {task.group_id: task for task in await self._rounds.tasks(number)}
        for name in self.window.offers if forget else ():
            await self._collector.forget(self._tasks[name])

    @property
    def window(self) -> Window:
        """The window; there is one after `hold`."""
        assert self._window is not None
        return self._window

    async def fill(self) -> None:
        """Offer rounds while there is room for one."""
        while (number := self.window.next_round()) is not None:
            tasks = await self._rounds.tasks(number)
            names = [task.group_id for task in tasks]
            self._tasks |= dict(zip(names, tasks, strict=True))
            self.window.offer(names)
            await self._note()
            await self._send(names)

    async def _send(self, names: list[str]) -> None:
        """Send groups, those that were offered together together."""
        by_offer: dict[Offer, list[GroupTask]] = {}
        for name in names:
            by_offer.setdefault(self.window.offers[name], []).append(self._tasks[name])
        for offer, tasks in by_offer.items():
            await self._collector.send(
                tasks,
                oldest={"policy": offer.policy, "reward": offer.reward},
                arrived=partial(self._parts.emit_group, self._run.id),
            )

    async def batch(self) -> Batch:
        """Wait for the groups of the next step. The same again when a step is repeated.

        Raises:
            TrainerError: they did not come within `run.step_deadline_s`, or nothing of them could be measured.
        """
        started = time.monotonic()
        measures = {"in_flight": float(len(self.window.offers))}
        names = self.window.training
        while names is None:
            self._arrivals()
            names = self.window.batch()
            if names is None:
                await self._look(list(self.window.waiting_for), started)
        measures |= await self._settle(names, started)
        groups = await self._collector.take(names)
        offers = {name: self.window.offers[name] for name in names}
        if self.window.training is None:
            self.window.begin()
            await self._note()
        return Batch(groups, offers, measures | {"seconds/wait": time.monotonic() - started})

    def _arrivals(self) -> None:
        for name in self.window.waiting_for:
            if name in self._collector.landed:
                self.window.arrived(name)

    async def _look(self, wanted: list[str], started: float) -> None:
        await self._collector.look(
            wanted, since=started, deadline_s=self._config.run.step_deadline_s
        )

    async def _settle(self, names: tuple[str, ...], started: float) -> dict[str, float]:
        """Wait for the groups of a batch, and have votes of a reward model that is too old cast again."""
        counts: Counter[str] = Counter()
        again = self._config.run.stale_votes == "rejudge"
        oldest = self.window.versions[1] - self._config.vote_bound
        asked: set[str] = set()
        while True:
            missing = [name for name in names if name not in self._collector.landed]
            for name in names if again and not missing else ():
                group = self._collector.landed[name]
                stale = stale_votes(group, oldest)
                if stale and name not in asked and self._judged_since(name) < oldest:
                    asked.add(name)
                    counts["votes/rejudged"] += len(stale)
                    since: dict[TrainedRole, int] = {
                        "policy": self.window.offers[name].policy,
                        "reward": self.window.versions[1],
                    }
                    await self._collector.judge_again(group, stale, oldest=since)
                    missing.append(name)
            if not missing:
                return {name: float(count) for name, count in counts.items()}
            await self._look(missing, started)

    def _judged_since(self, name: str) -> int:
        return self.window.offers[name].reward

    async def free(self, versions: dict[TrainedRole, int]) -> dict[str, Any]:
        """The step is published under these versions; returns the notes to commit with it."""
        training = self.window.training or ()
        self.window.publish(versions["policy"], versions["reward"])
        for name in training:
            self._tasks.pop(name, None)
        self._notes["window"] = self.window.snapshot()
        return dict(self._notes)

    async def _note(self) -> None:
        self._notes["window"] = self.window.snapshot()
        await asyncio.to_thread(
            self._parts.store.note, self._run.id, "window", self._notes["window"]
        )


def stale_votes(group: JudgedGroup, oldest: int) -> tuple[str, ...]:
    """Ids of the trajectories with a vote, or of the tests, that come from a reward model older than `oldest`."""
    if group.tests is not None:
        written = [span.version for test in group.tests.tests for span in test.versions]
        return (
            (unit_tests_id(group.tests.group_id),) if min(written, default=oldest) < oldest else ()
        )
    return tuple(
        votes.trajectory_id
        for votes in group.votes
        if votes is not None
        and any(
            span.version < oldest
            for step in votes.steps
            for vote in step.votes
            for span in vote.versions
        )
    )
