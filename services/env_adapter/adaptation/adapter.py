"""Adaptation as a plain object, outcome in, changed tasks out; and around it the job of the queue `adapt`.

adapter = make_adapter(database, family, generate)
for changed in await adapter.handle(outcome): ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import Counter

from services.env_adapter.adaptation.controllers import Controllers
from services.env_adapter.adaptation.measurement import Closed, MeasurementStore
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from triforge.broker import Broker, outcome_job
from triforge.errors import PolicyError, StorageError, TriforgeError, UnavailableError
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.store.database import Database
from triforge.types import GenerateReply, GenerateRequest, Proposal, TaskOutcome

REWRITES = Counter(
    "triforge_env_adapter_rewrites_total", "Task rewrites that came to a state.", ["state"]
)
_SWEEP_S = 1.0  # how often outcomes are looked for that nobody works on
_AGAIN_S = 5.0  # until an outcome that a service or store could not take is sent again
_log = logging.getLogger(__name__)


class Adapter:
    """Handles outcomes."""

    def __init__(self, measurements: MeasurementStore, controllers: Controllers) -> None:
        self._measurements = measurements
        self._controllers = controllers

    async def handle(self, outcome: RunOutcome) -> tuple[Proposal, ...]:
        """Count an outcome, decide what is pending, and let the controller respond to a training group.

        Returns the proposals whose state this has set: one that was decided, one that was made. Counting is one
        transaction, and so is storing a proposal; asking models in between may take long or fail. Repeating it is safe:
        nothing is counted twice, and nothing new is returned.

        Raises:
            UnavailableError, StorageError: the database does not answer; handle it again later.
            NotFoundError: the store has no such pool or task; repeating would not help.
            ConfigError: there is no such controller.
        """
        changed: list[Proposal] = []
        decided = await asyncio.to_thread(self._measurements.record, outcome)
        if decided is not None:
            changed.append(decided)
        if outcome.purpose == "train":
            controller = self._controllers.find(outcome.settings.adaptation.controller)
            made = await controller.respond(outcome)
            if isinstance(made, Closed):
                _log.info("no proposal for %s: %s", outcome.task_id, made.reason)
            else:
                changed.append(made)
        return tuple(changed)


def make_adapter(
    database: Database,
    family: Callable[[str], EnvironmentFamily],
    generate: Generate | None = None,
    *,
    writer: ProposalWriter | None = None,
) -> Adapter:
    """An adapter whose proposals are written by `writer`, or by one that asks `generate` for everything.

    Neither is needed where nothing is rewritten (none, ladder, and llm_rewrite with null_control 1).
    """
    measurements = MeasurementStore(database)
    writer = writer or ProposalWriter(generate or _no_model, family)
    return Adapter(measurements, Controllers(measurements, writer, database, family))


async def _no_model(request: GenerateRequest) -> GenerateReply:  # noqa: ARG001
    raise PolicyError("there is no model that rewrites")


class AdaptWorker:
    """Handles the outcomes of a queue; one a process, shared by all of its jobs, in one event loop."""

    def __init__(
        self, *, broker: Broker, adapter: Adapter, settings: Callable[[str], AdaptSettings]
    ) -> None:
        self._broker = broker
        self._adapter = adapter
        self._settings = settings

    async def handle(self, outcome: TaskOutcome) -> None:
        """Handle an outcome under its lease, or leave it to `watch`. Returns at once when another worker holds it.

        Raises:
            UnavailableError: Redis does not answer.
            TriforgeError: see `Adapter.handle`; delivering again would not help.
        """
        async with self._broker.lease(outcome_job(outcome.group_id)) as held:
            if not held:
                return
            try:
                settings = await asyncio.to_thread(self._settings, outcome.run_id)
                for proposal in await self._adapter.handle(RunOutcome.of(outcome, settings)):
                    await self._announce(proposal)
            except (UnavailableError, StorageError) as error:
                _log.warning("the outcome again in %.0f s: %s", _AGAIN_S, error.detail)
                await self._broker.postpone_outcome(outcome.group_id, _AGAIN_S)
                return
            except TriforgeError:
                await self._broker.finish_outcome(outcome.group_id)
                raise
            await self._broker.finish_outcome(outcome.group_id)

    async def watch(self) -> None:
        """Send outcomes again that nobody works on, until cancelled: nobody else would miss them."""
        while True:
            try:
                if count := await self._broker.resend_outcomes():
                    _log.warning("sent %d outcomes again that nobody worked on", count)
            except (UnavailableError, StorageError) as error:
                _log.warning("outcomes are not looked for: %s", error.detail)
            await asyncio.sleep(_SWEEP_S)

    async def _announce(self, proposal: Proposal) -> None:
        REWRITES.labels(proposal.state).inc()
        shown = proposal.model_dump(mode="json", exclude={"prompt", "checks", "run_id", "step"})
        kind = proposal.state if proposal.decided_step is not None else "proposal"
        await self._broker.emit(kind, run_id=proposal.run_id, step=proposal.step, **shown)
