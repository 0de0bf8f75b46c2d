"""Adaptation as a plain object, outcome in, changed tasks out, and the job of the queue `adapt` that uses it.

adapter = make_adapter(database, family, generate)
for changed in await adapter.handle(outcome): ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from prometheus_client import Counter

from services.env_adapter.adaptation.controllers import ControllerParts, TaskController
from services.env_adapter.adaptation.measurement import Closed, MeasurementStore
from services.env_adapter.adaptation.proposals import ProposalWriter
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from triforge.broker import Broker, outcome_job
from triforge.config.parts import CONTROLLERS
from triforge.errors import PolicyError, StorageError, TriforgeError, UnavailableError
from triforge.methods import load_part
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.store.database import Database
from triforge.types import GenerateReply, GenerateRequest, Proposal, TaskOutcome

REWRITES = Counter(
    "triforge_env_adapter_rewrites_total", "Task rewrites that came to a state.", ["state"]
)
_SWEEP_S: Final = 1.0  # between two searches for outcomes that no worker handles
_RETRY_S: Final = 5.0  # until an outcome is sent again after a service or store was away
_log = logging.getLogger(__name__)


class Adapter:
    """Handles outcomes by the controllers of their runs, each made when it is first needed."""

    def __init__(self, parts: ControllerParts) -> None:
        self._parts = parts
        self._controllers: dict[str, TaskController] = {}

    async def handle(self, outcome: RunOutcome) -> tuple[Proposal, ...]:
        """Count an outcome, decide the pending proposal that it measures, and let the controller respond to a training group.

        Return the proposals whose state changed. Counting is one transaction, and so is storing a proposal; requests to
        models in between may take long or fail. A repeated call counts nothing twice and returns nothing.

        Raises:
            UnavailableError, StorageError: the database does not answer; handle it again later.
            NotFoundError: the store has no such pool or task; repeating would not help.
            ConfigError: there is no such controller.
        """
        decided = await asyncio.to_thread(self._parts.measurements.record, outcome)
        changed = [] if decided is None else [decided]
        made = await self._respond(outcome)
        if isinstance(made, Closed):
            _log.info("no proposal for %s: %s", outcome.task_id, made.reason)
        else:
            changed.append(made)
        return tuple(changed)

    async def _respond(self, outcome: RunOutcome) -> Proposal | Closed:
        section = outcome.settings.adaptation
        if outcome.purpose != "train" or not section.adapts:
            return Closed(
                f"controller {section.controller}, a group with the purpose {outcome.purpose}"
            )
        if section.original_share and await asyncio.to_thread(
            self._parts.measurements.kept_original, outcome
        ):
            return Closed("the slot keeps its original task (adaptation.original_share)")
        name = section.controller
        if name not in self._controllers:
            part = load_part(CONTROLLERS.find(name).part, "adaptation.controller")
            self._controllers[name] = part(self._parts)
        return await self._controllers[name].respond(outcome)


def make_adapter(
    database: Database,
    family: Callable[[str], EnvironmentFamily],
    generate: Generate | None = None,
    *,
    writer: ProposalWriter | None = None,
) -> Adapter:
    """Make an adapter; proposals are written by `writer`, or by one that asks `generate` for everything.

    Neither is needed by controllers that ask no model.
    """
    writer = writer or ProposalWriter(generate or _no_model, family)
    return Adapter(ControllerParts(MeasurementStore(database), writer, database, family))


async def _no_model(request: GenerateRequest) -> GenerateReply:  # noqa: ARG001
    raise PolicyError("there is no model that rewrites")


class AdaptWorker:
    """Handles the outcomes of a queue; a process has one, which all its jobs share."""

    def __init__(
        self, *, broker: Broker, adapter: Adapter, settings: Callable[[str], AdaptSettings]
    ) -> None:
        self._broker = broker
        self._adapter = adapter
        self._settings = settings

    async def handle(self, outcome: TaskOutcome) -> None:
        """Handle an outcome under its lease, or leave it to `watch`; return at once if another worker holds it.

        Raises:
            UnavailableError: the broker does not answer.
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
                _log.warning("outcome is sent again in %.0f s: %s", _RETRY_S, error.detail)
                await self._broker.postpone_outcome(outcome.group_id, _RETRY_S)
                return
            except TriforgeError:
                await self._broker.finish_outcome(outcome.group_id)
                raise
            await self._broker.finish_outcome(outcome.group_id)

    async def watch(self) -> None:
        """Send outcomes again that no worker handles, until cancelled; the orchestrator does not wait for them."""
        while True:
            try:
                if count := await self._broker.resend_outcomes():
                    _log.warning("sent %d outcomes again", count)
            except (UnavailableError, StorageError) as error:
                _log.warning("pending outcomes cannot be read: %s", error.detail)
            await asyncio.sleep(_SWEEP_S)

    async def _announce(self, proposal: Proposal) -> None:
        REWRITES.labels(proposal.state).inc()
        shown = proposal.model_dump(mode="json", exclude={"prompt", "checks", "run_id", "step"})
        kind = proposal.state if proposal.decided_step is not None else "proposal"
        await self._broker.emit(kind, run_id=proposal.run_id, step=proposal.step, **shown)
