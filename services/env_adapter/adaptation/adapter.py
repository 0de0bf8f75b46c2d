"""Adaptation as a plain object: outcome in, changed tasks out. No queue, no lease, no web.

    adapter = make_adapter(database, family, generate)
    for changed in await adapter.handle(outcome): ...

The worker wraps it for the queue; experiments and tests call it as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.env_adapter.adaptation.controllers import Controllers
from services.env_adapter.adaptation.measurement import Closed, MeasurementStore
from services.env_adapter.adaptation.proposals import ProposalWriter
from triforge.errors import PolicyError
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.store.database import Database
from triforge.types import GenerateReply, GenerateRequest, Proposal, TaskOutcome

_log = logging.getLogger(__name__)


class Adapter:
    """Handles outcomes."""

    def __init__(self, measurements: MeasurementStore, controllers: Controllers) -> None:
        self._measurements = measurements
        self._controllers = controllers

    async def handle(self, outcome: TaskOutcome) -> tuple[Proposal, ...]:
        """Count an outcome, decide what is pending, and let the controller respond to a training group.

        Counting is one transaction, and so is storing a proposal; asking models in between may take long or fail.
        Repeating it is safe: nothing is counted twice, and nothing new is returned.

        Returns:
            The proposals whose state this outcome has set: one that was decided, one that was made.

        Raises:
            UnavailableError, StorageError: the database does not answer; handle it again later.
            NotFoundError: the store has no such pool or task; repeating would not help.
            ConfigError: there is no such controller.
        """
        changed: list[Proposal] = []
        decided = await asyncio.to_thread(self._measurements.record, outcome)
        if decided is not None:
            changed.append(decided)
        if outcome.purpose == "train" and outcome.adapt:
            made = await self._controllers.find(outcome.settings.adaptation.controller).respond(
                outcome
            )
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
    """An adapter.

    Args:
        database: at head.
        family: finds an environment family by name.
        generate: the model that diagnoses and rewrites; may be left out where nothing is rewritten (none, ladder, and
            llm_rewrite with null_control 1).
        writer: instead of one that asks `generate` for everything.
    """
    measurements = MeasurementStore(database)
    writer = writer or ProposalWriter(generate or _no_model, family)
    return Adapter(measurements, Controllers(measurements, writer, database, family))


async def _no_model(request: GenerateRequest) -> GenerateReply:  # noqa: ARG001
    raise PolicyError("there is no model that rewrites")
