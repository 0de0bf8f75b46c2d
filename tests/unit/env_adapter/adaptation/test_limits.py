"""The limits of rewriting: rewrites in a row, and slots that keep their original tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.env_adapter.adaptation.measurement import Closed, originals
from tests.sections import adapt_settings
from triforge.rollout.protocols import TaskDraft
from triforge.types import Proposal

if TYPE_CHECKING:
    from tests.unit.env_adapter.conftest import Service

PAPER = adapt_settings(acceptance="paper", max_pending=9)


def draft(shelf: int) -> TaskDraft:
    return TaskDraft(
        params={"shelf": shelf, "colour": "red"}, instruction=f"Put a red ball on shelf {shelf}."
    )


def rewrite(
    service: Service, number: int, task_id: str, *, accepted: bool, **options: Any
) -> Proposal:
    """Propose a rewrite of a task at step 10 * number and measure it one step later."""
    settings = adapt_settings(**{"acceptance": "paper", "max_pending": 9, **options})
    step = 10 * number
    outcome = service.outcome(task_id, 8, f"g{number}", step=step, settings=settings)
    service.measurements.record(outcome)
    slot = service.measurements.open_slot(outcome, in_work=0)
    assert not isinstance(slot, Closed), slot
    made = service.pending(task_id, f"made{number}", draft=draft(2 + number), settings=settings)
    with service.database.write() as session:  # as of its step
        from triforge.store.tables import ProposalRow

        row = session.get_one(ProposalRow, made.id)
        row.document = {**row.document, "step": step}
    decided = service.measure(made, step + 1, 8, 4 if accepted else 0, settings)
    assert decided is not None
    return decided


def why(service: Service, task_id: str, **options: Any) -> str:
    settings = adapt_settings(**{"acceptance": "paper", "max_pending": 9, **options})
    found = service.measurements.open_slot(
        service.outcome(task_id, 8, "why", step=99, settings=settings), in_work=0
    )
    return found.reason if isinstance(found, Closed) else ""


# ---- rewrites in a row ----


def test_a_slot_rests_after_so_many_rewrites_in_a_row(service: Service) -> None:
    for number in (1, 2):
        assert why(service, service.first, max_consecutive=2) == ""
        rewrite(service, number, service.first, accepted=False)
    assert "max_consecutive = 2" in why(service, service.first, max_consecutive=2)
    assert why(service, service.first, max_consecutive=3) == ""
    assert why(service, service.first, max_consecutive=0) == ""
    assert why(service, service.second, max_consecutive=2) == ""


def test_a_group_inside_the_band_begins_the_count_again(service: Service) -> None:
    for number in (1, 2):
        rewrite(service, number, service.first, accepted=False)
    service.measurements.record(service.outcome(service.first, 4, "inside", step=50))
    assert why(service, service.first, max_consecutive=1) == ""


def test_what_another_run_rewrote_is_not_counted(service: Service) -> None:
    rewrite(service, 1, service.first, accepted=False)
    other = service.outcome(
        service.first,
        8,
        "o",
        step=99,
        settings=adapt_settings(acceptance="paper", max_pending=9, max_consecutive=1),
    )
    found = service.measurements.open_slot(other.model_copy(update={"run_id": "other"}), in_work=0)
    assert not isinstance(found, Closed)


# ---- originals ----


def test_the_share_of_original_tasks_is_exact_and_the_same_for_every_run() -> None:
    for share, kept in ((0.0, 0), (0.25, 25), (0.5, 50), (1.0, 100)):
        assert len(originals("pool", 100, share)) == kept
    assert originals("pool", 100, 0.25) < originals("pool", 100, 0.5)
    assert originals("pool", 100, 0.5) != originals("other", 100, 0.5)
