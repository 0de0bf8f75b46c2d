"""The decision on a task once a training group of it was measured.

`triforge.config.parts` lists the controllers of the core; a method brings another (`triforge.methods.Controller`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.env_adapter.adaptation.measurement import Closed, MeasurementStore
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import RunOutcome
from triforge.algorithms.filters import rewrite_direction
from triforge.rollout.protocols import EnvironmentFamily
from triforge.store.database import Database
from triforge.types import Direction, Proposal


class TaskController(Protocol):
    """The part of a controller that runs in adapt workers; it is made with `ControllerParts`."""

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """Make a proposal, or return why there is none. The same outcome leads to one proposal at most."""


@dataclass(frozen=True, slots=True)
class ControllerParts:
    """The objects that a controller may use."""

    measurements: MeasurementStore
    writer: ProposalWriter
    database: Database
    family: Callable[[str], EnvironmentFamily]


class LlmRewrite:
    """Rewrites tasks outside the band by a language model (RLAnything)."""

    def __init__(self, parts: ControllerParts) -> None:
        self._measurements, self._writer = parts.measurements, parts.writer
        self._in_work: Counter[str] = Counter()  # proposals being written, by pool
        self._turn = asyncio.Lock()

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """Make a proposal, pending or invalid, if the task left the band and no limit forbids it."""
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


def wanted_direction(outcome: RunOutcome) -> Direction | None:
    """Return the direction in which the outcome's task should be rewritten; None for no rewrite.

    The band decides (arXiv 2602.02488, section 2). At least half of the group must have been measured: rollouts that the
    infrastructure lost are not read as difficulty.
    """
    if outcome.purpose != "train" or 2 * outcome.measured < outcome.rollouts:
        return None
    return rewrite_direction(outcome.successes, outcome.measured, band=outcome.settings.algorithm)
