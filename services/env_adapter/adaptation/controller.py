"""Controllers: what a measured training group leads to. All of them answer one call and none of them holds a queue.

none         nothing
llm_rewrite  outside the band: a rewrite by a language model, measured before it is taken (RLAnything)
ladder       always: a fresh task from a window of difficulty levels that moves up with the policy (RLVE)
mixed        one of the two, but a fixed share of the slots keeps its original tasks
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from services.env_adapter.adaptation.ledger import Closed, Ledger
from triforge.algorithms.filters import rewrite_direction
from triforge.types import ControllerName, Direction, Proposal, TaskOutcome


class Controller(Protocol):
    """Decides what becomes of a task after one of its training groups was counted."""

    async def respond(self, outcome: TaskOutcome) -> Proposal | Closed:
        """Make a proposal, or say why there is none. The same outcome leads to one proposal at most.

        Raises:
            UnavailableError, StorageError: the database does not answer; respond again later.
            NotFoundError: the store has no such pool or task.
        """
        ...


class NoController:
    """Leaves every task as it is."""

    async def respond(self, outcome: TaskOutcome) -> Proposal | Closed:  # noqa: ARG002
        """Nothing."""
        return Closed("adaptation.controller is none")


class Mixed:
    """Another controller on part of the pool: a fixed share of the slots keeps its original tasks.

    Args:
        ledger: knows the slots.
        controllers: by name; the outcome's settings say which one it is (`mixed_with`).
    """

    def __init__(self, ledger: Ledger, controllers: Mapping[ControllerName, Controller]) -> None:
        self._ledger = ledger
        self._controllers = controllers

    async def respond(self, outcome: TaskOutcome) -> Proposal | Closed:
        """What the other controller makes of it, unless the slot is kept."""
        if await asyncio.to_thread(self._ledger.kept_original, outcome):
            return Closed("the slot keeps its original task (adaptation.original_share)")
        return await self._controllers[outcome.settings.adaptation.mixed_with].respond(outcome)


def wanted_direction(outcome: TaskOutcome) -> Direction | None:
    """Which way the task of this outcome should be rewritten, if at all.

    The band decides (arXiv 2602.02488, section 2), by measured rollouts only, and at least half of the group must have been
    measured: what the infrastructure lost is not read as difficulty, and what little is left is not read as a sign.
    """
    if outcome.purpose != "train" or not outcome.adapt:
        return None
    if 2 * outcome.measured < outcome.rollouts:
        return None
    return rewrite_direction(outcome.successes, outcome.measured, band=outcome.settings.algorithm)
