"""Families are plug-ins: what they raise while a rewrite is written is on record, and is not tried again for ever."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.adaptation.adapter import make_adapter
from tests.sections import adapt_settings
from tests.unit.env_adapter.conftest import Service, ShelfFamily
from triforge.errors import SandboxError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.testing.fakes import FakeGenerate
from triforge.types import Direction, Task


def first_choice(request: Any) -> str:
    return "" if request.sampling.regex is None else str(request.sampling.regex).split("|")[0]


class NoMenu(ShelfFamily):
    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        raise KeyError("shelf")


class NoRewrite(ShelfFamily):
    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        raise ZeroDivisionError("a shelf of no width")


class NoProof(ShelfFamily):
    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> Any:
        raise SandboxError("no sandbox starts here")


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (NoMenu(), "writing the proposal raised KeyError: 'shelf'"),
        (NoRewrite(), "writing the proposal raised ZeroDivisionError: a shelf of no width"),
        (NoProof(), "writing the proposal raised SandboxError: no sandbox starts here"),
    ],
)
async def test_what_a_family_raises_makes_an_invalid_proposal_that_says_so(
    service: Service, family: ShelfFamily, reason: str
) -> None:
    model = FakeGenerate(first_choice)
    adapter = make_adapter(service.database, lambda _: family, model)
    outcome = service.outcome(service.first, 8, settings=adapt_settings(max_pending=9))
    (proposal,) = await adapter.handle(outcome)
    assert (proposal.state, proposal.reason) == ("invalid", reason)
    asked = len(model.requests)
    assert await adapter.handle(outcome) == (), "it is on record"
    assert len(model.requests) == asked, "no model is asked about it again"
