"""Controllers: what a measured training group leads to, registered by name.

none         nothing
llm_rewrite  outside the band: a rewrite by a language model, measured before it is taken (RLAnything)
ladder       always: a fresh task from a window of difficulty levels that moves up with the policy (RLVE)
mixed        one of the others, but a fixed share of the slots keeps its original tasks

`package.module:function` names any other: the function takes the `Controllers` and returns a `Controller`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from services.env_adapter.adaptation.measurement import Closed, MeasurementStore
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import RunOutcome
from triforge.algorithms.filters import rewrite_direction
from triforge.algorithms.registry import Registry
from triforge.rollout.protocols import EnvironmentFamily
from triforge.store.database import Database
from triforge.types import Direction, Proposal

CONTROLLERS: Final[Registry[Any]] = Registry(
    "adaptation.controller", object, "services.env_adapter.adaptation"
)


class Controller(Protocol):
    """Decides what becomes of a task after one of its training groups was counted."""

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """Make a proposal, or say why there is none. The same outcome leads to one proposal at most."""


@dataclass(slots=True)
class Controllers:
    """The controllers of a worker by name, each made when it is first needed; and what they are made of."""

    measurements: MeasurementStore
    writer: ProposalWriter
    database: Database
    family: Callable[[str], EnvironmentFamily]
    _made: dict[str, Controller] = field(default_factory=dict)

    def find(self, name: str) -> Controller:
        """The controller of that name or path; ConfigError if there is none."""
        if name not in self._made:
            self._made[name] = CONTROLLERS.find(name)(self)
        return self._made[name]


class NoController:
    """Leaves every task as it is."""

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:  # noqa: ARG002
        """Nothing."""
        return Closed("adaptation.controller is none")


class LlmRewrite:
    """Rewrites tasks outside the band. With `null_control` 1 every candidate is the unchanged parent, never taken."""

    def __init__(self, measurements: MeasurementStore, writer: ProposalWriter) -> None:
        self._measurements = measurements
        self._writer = writer
        self._in_work: Counter[str] = Counter()  # proposals being written, by pool
        self._turn = asyncio.Lock()

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """A proposal, pending or invalid, if the task left the band and no limit forbids it."""
        direction, pool = wanted_direction(outcome), outcome.pool_id
        if direction is None:
            return Closed("the task is inside the band")
        async with self._turn:  # outcomes that arrive together share the limits
            slot = await asyncio.to_thread(
                self._measurements.open_slot, outcome, in_work=self._in_work[pool]
            )
            if isinstance(slot, Closed):
                return slot
            self._in_work[pool] += 1
        try:
            proposal, candidate = await self._writer.write(outcome, direction, slot)
            return await asyncio.to_thread(self._measurements.propose, outcome, proposal, candidate)
        finally:
            self._in_work[pool] -= 1


class Mixed:
    """The controller `mixed_with` on part of the pool; a fixed share of the slots keeps its original tasks."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """What the other controller makes of it, unless the slot is kept."""
        if await asyncio.to_thread(self._controllers.measurements.kept_original, outcome):
            return Closed("the slot keeps its original task (adaptation.original_share)")
        return await self._controllers.find(outcome.settings.adaptation.mixed_with).respond(outcome)


CONTROLLERS.add("none", lambda _: NoController())
CONTROLLERS.add("llm_rewrite", lambda parts: LlmRewrite(parts.measurements, parts.writer))
CONTROLLERS.add("mixed", Mixed)


def wanted_direction(outcome: RunOutcome) -> Direction | None:
    """Which way the task of this outcome should be rewritten, if at all.

    The band decides (arXiv 2602.02488, section 2), by measured rollouts only, and at least half of the group must have
    been measured: what the infrastructure lost is not read as difficulty.
    """
    if outcome.purpose != "train" or 2 * outcome.measured < outcome.rollouts:
        return None
    return rewrite_direction(outcome.successes, outcome.measured, band=outcome.settings.algorithm)
