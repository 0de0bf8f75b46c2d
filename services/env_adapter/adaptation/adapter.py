"""Adaptation as a plain object: outcome in, changed tasks out. No queue, no lease, no web.

    adapter = make_adapter(database, family, generate)
    for changed in await adapter.handle(outcome): ...

The worker wraps it for the queue; experiments and tests call it as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from services.env_adapter.adaptation.controller import Controller, Mixed, NoController
from services.env_adapter.adaptation.drafter import Drafter
from services.env_adapter.adaptation.ladder import LadderController
from services.env_adapter.adaptation.ledger import Closed, Ledger
from services.env_adapter.adaptation.llm_rewrite import LlmRewrite
from triforge.errors import PolicyError
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.store.database import Database
from triforge.types import (
    ControllerName,
    GenerateReply,
    GenerateRequest,
    Proposal,
    TaskOutcome,
)

_log = logging.getLogger(__name__)


class Adapter:
    """Handles outcomes.

    Args:
        ledger: the store.
        controllers: by name; an outcome's settings name its own.
    """

    def __init__(self, ledger: Ledger, controllers: Mapping[ControllerName, Controller]) -> None:
        self._ledger = ledger
        self._controllers = controllers

    async def handle(self, outcome: TaskOutcome) -> tuple[Proposal, ...]:
        """Count an outcome, move what is pending, and let the controller respond to a training group.

        Counting comes first and is one transaction; drafting a rewrite asks models and may take long or fail; storing
        the proposal is one transaction again. Whoever dies in between is followed by somebody who starts over, with
        nothing counted twice. Repeating it is safe and returns nothing new.

        Returns:
            The proposals that came to a state by it: one that was decided, one that was made.

        Raises:
            UnavailableError, StorageError: the database does not answer; handle it again later.
            NotFoundError: the store has no such pool or task; repeating would not help.
        """
        changed: list[Proposal] = []
        decided = await asyncio.to_thread(self._ledger.record, outcome)
        if decided is not None:
            changed.append(decided)
        if outcome.purpose == "train" and outcome.adapt:
            made = await self._controllers[outcome.settings.adaptation.controller].respond(outcome)
            if isinstance(made, Closed):
                _log.info("nothing is made of %s: %s", outcome.task_id, made.reason)
            else:
                changed.append(made)
        return tuple(changed)


def make_adapter(
    database: Database,
    family: Callable[[str], EnvironmentFamily],
    generate: Generate | None = None,
    *,
    drafter: Drafter | None = None,
) -> Adapter:
    """An adapter with every controller.

    Args:
        database: at head.
        family: finds an environment family by name.
        generate: the model that criticises and rewrites; may be left out where nothing is rewritten (none, ladder, and
            llm_rewrite with null_control 1).
        drafter: instead of one that asks `generate` for everything.
    """
    ledger = Ledger(database)
    rewrite = LlmRewrite(ledger, drafter or Drafter(generate or _nobody, family))
    controllers: dict[ControllerName, Controller] = {
        "none": NoController(),
        "llm_rewrite": rewrite,
        "ladder": LadderController(database, family),
    }
    controllers["mixed"] = Mixed(ledger, dict(controllers))
    return Adapter(ledger, controllers)


async def _nobody(request: GenerateRequest) -> GenerateReply:  # noqa: ARG001
    raise PolicyError("there is no model that rewrites")
