"""What one outcome leads to: the errand of the queue `adapt`.

Counting comes first and is one transaction; drafting a rewrite asks models and may take long or fail; storing the
proposal is one transaction again. A worker that dies in between is followed by one that starts over, with nothing
counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from typing import Any

from prometheus_client import Counter

from services.env_adapter.adaptation.controller import wanted_direction
from services.env_adapter.adaptation.drafter import Drafter
from services.env_adapter.adaptation.ledger import Closed, Ledger, Opening
from triforge.messages import Direction, Proposal, TaskOutcome
from triforge.queues import Wire

_log = logging.getLogger(__name__)

REWRITES = Counter("triforge_rewrites_total", "Task rewrites that came to a state.", ["state"])


class AdaptWorker:
    """Handles outcomes; one a process, shared by all of its errands, in one event loop.

    Args:
        wire: leases and events.
        ledger: the store.
        drafter: makes proposals.
    """

    def __init__(self, *, wire: Wire, ledger: Ledger, drafter: Drafter) -> None:
        self._wire = wire
        self._ledger = ledger
        self._drafter = drafter
        self._drafting: Tally[str] = Tally()
        self._turn = asyncio.Lock()

    async def handle(self, outcome: TaskOutcome) -> None:
        """Count an outcome, move what is pending, and propose a rewrite if the task left the band.

        Returns at once when another worker holds the outcome.

        Raises:
            UnavailableError: Redis or the database does not answer; deliver the errand again later.
            NotFoundError: the store has no such pool or task; delivering again would not help.
        """
        async with self._wire.lease(f"adapt:{outcome.group_id}") as held:
            if not held:
                return
            decided = await asyncio.to_thread(self._ledger.record, outcome)
            if decided is not None:
                await self._announce(decided.state, decided)
            direction = wanted_direction(outcome)
            if direction is not None:
                await self._propose(outcome, direction)

    async def _propose(self, outcome: TaskOutcome, direction: Direction) -> None:
        opening = await self._claim(outcome)
        if isinstance(opening, Closed):
            return
        try:
            drafted = await self._drafter.draft(outcome, direction, opening)
            if isinstance(drafted, Closed):
                _log.info("no proposal for %s: %s", outcome.task_id, drafted.reason)
                return
            stored = await asyncio.to_thread(
                self._ledger.propose, outcome, drafted.proposal, drafted.draft
            )
        finally:
            self._drafting[outcome.pool_id] -= 1
        if isinstance(stored, Closed):
            _log.info("a proposal for %s came too late: %s", outcome.task_id, stored.reason)
            return
        await self._announce("proposal", stored)

    async def _claim(self, outcome: TaskOutcome) -> Opening | Closed:
        """Look at the caps and take a place under them in one turn: outcomes that arrive together do not all draft."""
        async with self._turn:
            opening = await asyncio.to_thread(
                self._ledger.opening, outcome, drafting=self._drafting[outcome.pool_id]
            )
            if isinstance(opening, Opening):
                self._drafting[outcome.pool_id] += 1
            return opening

    async def _announce(self, kind: str, proposal: Proposal) -> None:
        REWRITES.labels(proposal.state).inc()
        shown: dict[str, Any] = proposal.model_dump(
            mode="json", exclude={"prompt", "checks", "run_id", "step"}
        )
        await self._wire.emit(kind, run_id=proposal.run_id, step=proposal.step, **shown)
