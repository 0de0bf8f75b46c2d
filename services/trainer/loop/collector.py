"""Rollouts and votes: the window of rounds that a run has in flight, and the groups of its next step.

    collect ─► submits the planned rounds, waits for the window's batch, has stale votes cast again, pins the batch
    refill  ─► plays more groups for the same step: replacements for groups that teach nothing, and groups of methods
    advance ─► moves the window when the step's weights are served; it is committed with the step

The window is stored in the run's row when a round is offered and when a batch is chosen. So an orchestrator that was killed comes
back to the same groups in flight, and to the same batch if one was chosen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from services.trainer.credit.judged_groups import stale_votes
from services.trainer.loop.in_flight import InFlight
from services.trainer.loop.parts import Parts
from triforge.config import RunConfig
from triforge.rollout.window import Offer, Window
from triforge.types import GroupTask, JudgedGroup, RunState, TrainedRole

Plan = Callable[[Iterable[int]], Awaitable[dict[int, list[GroupTask]]]]


class Collector:
    """The groups that one run has in flight.

    `notes` are the orchestrator's in the run's row and hold the `window`; `plan` builds the groups of rounds, the same again
    after a restart.
    """

    def __init__(
        self,
        parts: Parts,
        in_flight: InFlight,
        run: RunState,
        config: RunConfig,
        notes: dict[str, Any],
        plan: Plan,
    ) -> None:
        self._parts, self._in_flight, self._run, self._config = parts, in_flight, run, config
        self._notes, self._plan = notes, plan
        self._models = config.models.trainable  # in the window's order
        self._tasks: dict[str, GroupTask] = {}
        # groups of the current step in addition to its batch
        self._refills: dict[str, Offer] = {}
        saved = notes.get("window")
        self._window = Window.restore(saved) if saved else None
        self._restored = saved is not None
        self._measures: dict[str, float] = {}
        self._counted = (0.0, 0.0, 0.0)

    @property
    def window(self) -> Window:
        """The window, which exists after `resume`."""
        assert self._window is not None
        return self._window

    @property
    def next(self) -> int:
        """The number of the step that is gathered, or under way."""
        return self.window.step + 1

    @property
    def offers(self) -> dict[str, Offer]:
        """When each group in flight and each group of the last step was offered."""
        return self.window.offers | self._refills

    async def resume(self, versions: Mapping[TrainedRole, int], step: int) -> None:
        """Continue the window with the versions of the run after `step`.

        If the versions have other numbers than those of the window (another run was served in between), all groups in flight are
        played again. Groups of a killed orchestrator are submitted again.
        """
        stand = self._of(versions)
        if self._window is None:
            run = self._config.run
            bound, late = run.staleness_bound, run.late_groups
            self._window = Window(bound, run.steps, step=step, versions=stand, late=late)
        moved = self._window.versions != stand
        if not self._restored and not moved:
            return
        rounds = sorted({offer.round for offer in self.window.offers.values()})
        for tasks in (await self._plan(rounds)).values():
            self._tasks |= {task.group_id: task for task in tasks}
        if moved:
            for name in self.window.offers:
                await self._in_flight.forget(self._tasks[name])
            self._window.renumber(*stand)
            await self._note()
        await self._submit(self.window.offers)
        self._restored = False

    async def collect(self, tasks: Mapping[int, Sequence[GroupTask]]) -> list[JudgedGroup]:
        """Begin these rounds, and wait for the groups of the next step. A repeated step gets the same groups.

        Raises:
            TrainerError: the groups did not come within `run.step_deadline_s`, or no episode could be measured; groups that a
                trainer plays are played again then.
        """
        for groups in tasks.values():
            names = [task.group_id for task in groups]
            self._tasks |= dict(zip(names, groups, strict=True))
            self.window.offer(names)
            await self._note()
            await self._submit(names)
        started = time.monotonic()
        self._measures = {"in_flight": float(len(self.window.offers))}
        chosen = self.window.training
        if chosen is None:
            chosen = await self._batch(started)
        await self._wait_for_votes(chosen, started)
        while self._config.env_adapter.by_trainer and not self._in_flight.is_measured(chosen):
            for name in chosen:  # a trainer that cancels them all may mend itself meanwhile
                await self._in_flight.forget(self._tasks[name])
            await self._submit(chosen)
            await self._wait_for_votes(chosen, started)
        found = await self._in_flight.take(chosen)
        if self.window.training is None:
            self.window.begin()
            await self._note()
        self._measures["seconds/wait"] = time.monotonic() - started
        return found

    async def refill(self, tasks: Sequence[GroupTask]) -> list[JudgedGroup]:
        """Play groups for the step whose batch was collected, by the live weights. A repeated step gets the same groups.

        Raises:
            TrainerError: the groups did not come within `run.step_deadline_s`.
        """
        started, live = time.monotonic(), self.window.versions
        offer = Offer(self.window.step + 1, self.window.step, live)
        names = [task.group_id for task in tasks]
        self._refills |= dict.fromkeys(names, offer)
        await self._in_flight.submit(tasks, oldest=self._named(live))
        while missing := [name for name in names if name not in self._in_flight.landed]:
            await self._receive(missing, started)
        drawn = self._measures.get("groups/refilled", 0.0)
        self._measures["groups/refilled"] = drawn + sum(task.purpose != "method" for task in tasks)
        return [self._in_flight.landed.pop(name) for name in names]

    def advance(self, versions: Mapping[TrainedRole, int]) -> None:
        """Remove the groups of the step from the window; these versions are served now."""
        for name in self.window.training or ():
            self._tasks.pop(name, None)
        self._refills = {}
        self.window.advance(*self._of(versions))
        self._notes["window"] = self.window.snapshot()

    def measures(self) -> dict[str, float]:
        """Return the measures of the last `collect`, and counts since the last call."""
        before, flight = self._counted, self._in_flight
        self._counted = (float(flight.resent), float(flight.replayed), flight.overlap_s)
        since = [now - then for now, then in zip(self._counted, before, strict=True)]
        names = ("resent", "replayed", "seconds/overlap")
        return self._measures | dict(zip(names, since, strict=True))

    async def _batch(self, started: float) -> tuple[str, ...]:
        """Wait until the window has the groups of the next step."""
        while True:
            for name in self.window.waiting_for:
                if name in self._in_flight.landed:
                    self.window.arrived(name)
            chosen = self.window.batch()
            if chosen is not None:
                return chosen
            await self._receive(self.window.waiting_for, started)

    async def _wait_for_votes(self, names: tuple[str, ...], started: float) -> None:
        """Wait for the groups of a batch; have votes of a reward model that is too old cast again, once for each group."""
        rejudge = self._config.run.stale_votes == "rejudge"
        asked: set[str] = set()
        while True:
            missing = [name for name in names if name not in self._in_flight.landed]
            if not missing and rejudge:
                missing = [n for n in names if n not in asked and await self._judge_again(n)]
                asked.update(missing)
            if not missing:
                return
            await self._receive(missing, started)

    async def _judge_again(self, name: str) -> bool:
        """Have a group's stale votes cast again; False if it has none."""
        live, offered = (
            self._named(self.window.versions),
            self._named(self.window.offers[name].versions),
        )
        group, judging = self._in_flight.landed[name], self._config.models.judging
        oldest = {role: live[role] - self._config.vote_bound for role in judging}
        behind = any(offered[role] < version for role, version in oldest.items())
        stale = stale_votes(group, oldest) if behind else ()
        if stale:
            since = offered | {role: live[role] for role in judging}
            await self._in_flight.judge_again(group, stale, oldest=since)
            count = self._measures.get("votes/rejudged", 0.0)
            self._measures["votes/rejudged"] = count + len(stale)
        return bool(stale)

    async def _receive(self, wanted: Sequence[str], started: float) -> None:
        deadline_s = self._config.run.step_deadline_s
        await self._in_flight.receive(wanted, since=started, deadline_s=deadline_s)

    async def _submit(self, names: Iterable[str]) -> None:
        """Submit groups; those of one offer are submitted together."""
        by_offer: dict[Offer, list[GroupTask]] = {}
        for name in names:
            by_offer.setdefault(self.window.offers[name], []).append(self._tasks[name])
        for offer, tasks in by_offer.items():
            await self._in_flight.submit(tasks, oldest=self._named(offer.versions))

    def _of(self, versions: Mapping[TrainedRole, int]) -> tuple[int, ...]:
        return tuple(versions.get(name, 0) for name in self._models)

    def _named(self, versions: tuple[int, ...]) -> dict[TrainedRole, int]:
        return dict(zip(self._models, versions, strict=True))

    async def _note(self) -> None:
        self._notes["window"] = window = self.window.snapshot()
        await asyncio.to_thread(self._parts.store.note, self._run.id, "window", window)
