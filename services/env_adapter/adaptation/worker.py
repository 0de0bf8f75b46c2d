"""The job of the queue `adapt`: an outcome is handled by whoever holds its lease, and people hear what came of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from prometheus_client import Counter

from services.env_adapter.adaptation.adapter import Adapter
from triforge.broker import Broker, outcome_job
from triforge.errors import StorageError, TriforgeError, UnavailableError
from triforge.types import Proposal, TaskOutcome

REWRITES = Counter(
    "triforge_env_adapter_rewrites_total", "Task rewrites that came to a state.", ["state"]
)

log = logging.getLogger(__name__)

_SWEEP_S = 1.0  # how often outcomes are looked for that nobody works on
_COMES_BACK_S = 200.0  # a job that a service has refused is back in the queue by then


class AdaptWorker:
    """Handles outcomes; one a process, shared by all of its jobs, in one event loop.

    Args:
        broker: leases and events.
        adapter: does the work.
    """

    def __init__(self, *, broker: Broker, adapter: Adapter) -> None:
        self._broker = broker
        self._adapter = adapter

    async def handle(self, outcome: TaskOutcome) -> None:
        """Handle an outcome under its lease; see `Adapter.handle`. Returns at once when another worker holds it.

        Raises:
            UnavailableError: Redis or the database does not answer; deliver the job again later.
            StorageError: the database cannot be written; deliver the job again later.
            NotFoundError: the store has no such pool or task; delivering again would not help.
        """
        async with self._broker.lease(outcome_job(outcome.group_id)) as held:
            if not held:
                return
            try:
                for proposal in await self._adapter.handle(outcome):
                    await self._announce(proposal)
            except (UnavailableError, StorageError):
                await self._broker.postpone_outcome(outcome.group_id, _COMES_BACK_S)
                raise
            except TriforgeError:
                await self._broker.finish_outcome(outcome.group_id)
                raise
            await self._broker.finish_outcome(outcome.group_id)

    async def watch(self) -> None:
        """Send outcomes again that nobody works on, until cancelled: nobody else would miss them."""
        while True:
            try:
                count = await self._broker.resend_outcomes()
            except (UnavailableError, StorageError) as error:
                log.warning("outcomes are not looked for: %s", error.detail)
            else:
                if count:
                    log.warning("sent %d outcomes again that nobody worked on", count)
            await asyncio.sleep(_SWEEP_S)

    async def _announce(self, proposal: Proposal) -> None:
        REWRITES.labels(proposal.state).inc()
        shown: dict[str, Any] = proposal.model_dump(
            mode="json", exclude={"prompt", "checks", "run_id", "step"}
        )
        kind = proposal.state if proposal.decided_step is not None else "proposal"
        await self._broker.emit(kind, run_id=proposal.run_id, step=proposal.step, **shown)
