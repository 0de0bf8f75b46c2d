"""The states of slots and proposals: every transition whole, counted once, and on record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.env_adapter.adaptation.measurement import Closed, OpenSlot
from tests.sections import adapt_settings
from tests.unit.env_adapter.conftest import Service, crash_at
from triforge.algorithms.acceptance import decide, paper_accepts
from triforge.errors import NotFoundError
from triforge.rollout.protocols import TaskDraft
from triforge.store.tables import TaskRow
from triforge.types import Proposal

PAPER = adapt_settings(acceptance="paper")


# ---- measurements ----


def test_deliveries_that_race_count_once(service: Service) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(service.measurements.record, [service.outcome(service.first, 5)] * 16))
    (measurement,) = service.store.detail(service.first).measurements
    assert (measurement.successes, measurement.measured, measurement.rollouts) == (5, 8, 8)


def test_an_outcome_of_an_unknown_pool_is_refused(service: Service) -> None:
    stray = service.outcome(service.first, 5).model_copy(update={"pool_id": "pool-none"})
    with pytest.raises(NotFoundError):
        service.measurements.record(stray)


# ---- proposals ----


def test_a_proposal_adds_a_pending_candidate_to_the_active_parent(service: Service) -> None:
    made = service.pending(service.first)
    assert service.states() == {"v0": "active", "v1": "pending"}
    candidate = service.store.task(f"{service.first}-v1")
    assert (candidate.id, candidate.parent_id) == (made.candidate_id, service.first)
    assert (candidate.params, candidate.instruction) == (
        service.hard.params,
        service.hard.instruction,
    )
    assert (candidate.slot, candidate.split) == (service.first, "train")
    assert made.instruction_after == service.hard.instruction


def test_an_invalid_proposal_is_kept_and_leaves_the_slot_free(service: Service) -> None:
    assert isinstance(service.propose(service.first, "g1", draft=None), Proposal)
    assert service.states() == {"v0": "active"}
    assert service.store.pool("p").proposals == {"invalid": 1}
    assert service.pending(service.first, "g2").state == "pending"
    root = service.store.lineage(service.first).versions[0]
    assert [attempt.state for attempt in root.attempts] == ["invalid"]


def closed(service: Service, task_id: str, group: str, **more: Any) -> str:
    found = service.measurements.open_slot(service.outcome(task_id, 8, group, **more), in_work=0)
    return found.reason if isinstance(found, Closed) else ""


def test_a_slot_is_closed_while_something_is_pending_and_by_every_cap(service: Service) -> None:
    assert closed(service, service.first, "g") == ""
    service.pending(service.first)
    assert "already" in closed(service, service.first, "g")
    assert "pending proposal" in closed(service, service.first, "g2")
    assert closed(service, service.second, "g2") == ""
    assert "max_pending" in closed(
        service, service.second, "g2", settings=adapt_settings(max_pending=1)
    )
    assert "max_proposals" in closed(
        service, service.second, "g2", settings=adapt_settings(max_proposals=1)
    )
    assert "Held-out".lower() in closed(service, service.held, "g2")
    assert "pending, only an active" in closed(service, f"{service.first}-v1", "g2")
    drafting = service.measurements.open_slot(service.outcome(service.second, 8, "g2"), in_work=1)
    assert isinstance(drafting, Closed)


def test_a_proposal_that_comes_too_late_is_not_stored(service: Service) -> None:
    service.pending(service.first, "g1")
    assert isinstance(service.propose(service.first, "g2"), Closed)
    assert isinstance(service.propose(service.first, "g1"), Closed)  # delivered again
    assert service.states() == {"v0": "active", "v1": "pending"}
    assert service.store.pool("p").proposals == {"pending": 1}


def test_an_slot_knows_the_root_and_everything_the_slot_ever_had(service: Service) -> None:
    made = service.pending(service.first)
    service.measure(made, 1, 8, 4, PAPER)
    slot = service.measurements.open_slot(
        service.outcome(f"{service.first}-v1", 8, "g9"), in_work=0
    )
    assert isinstance(slot, OpenSlot)
    assert slot.parent.id == f"{service.first}-v1"
    assert slot.root.instruction == "Put a red ball on shelf 1."
    assert len(slot.earlier) == 2


# ---- verdicts ----


def test_an_accepted_candidate_takes_its_parents_place(service: Service) -> None:
    made = service.pending(service.first)
    decided = service.measure(made, 1, 8, 4, PAPER)
    assert decided is not None
    assert (decided.state, decided.verdict) == ("accepted", "accepted")
    assert service.states() == {"v0": "replaced", "v1": "active"}
    assert service.stored(made) == decided
    assert decided.parent_counts == ((8, 8),)
    assert decided.candidate_counts == ((4, 8),)
    lineage = service.store.lineage(service.first)
    assert lineage.active_id == made.candidate_id
    assert lineage.versions[0].children == (made.candidate_id,)
    assert lineage.versions[1].made_by == decided
    assert [m.purpose for m in lineage.versions[1].measurements] == ["measure_candidate"]


@pytest.mark.parametrize(
    ("rule", "after"), [("confident", 4), ("confident", 8), ("paper", 4), ("paper", 0)]
)
def test_a_verdict_is_recomputed_from_the_proposal_alone(
    service: Service, rule: str, after: int
) -> None:
    settings = adapt_settings(acceptance=rule, alpha_high=0.85, max_rollouts=32)
    made, step, decided = service.pending(service.first), 0, None
    while decided is None:
        step += 1
        decided = service.measure(made, step, 8, after, settings)
    lines = [found.model_dump_json() for found in service.store.proposals("p").items]
    [proposal] = [Proposal.model_validate_json(line) for line in lines]
    test = proposal.test
    assert test is not None
    if rule == "paper":
        before, [(successes, measured)] = proposal.trigger_accuracy, proposal.candidate_counts
        accepted = paper_accepts(
            proposal.direction, before, successes / measured, test.low, test.high
        )
        assert proposal.verdict == ("accepted" if accepted else "rejected")
        return
    again = decide(
        proposal.direction, proposal.parent_counts, proposal.candidate_counts, low=test.low, high=test.high,
        alpha=test.alpha or 0.0, max_rollouts=test.max_rollouts or 0,
    )  # fmt: skip
    assert proposal.verdict == {"accept": "accepted", "reject": "rejected"}[again.verdict]
    assert (test.p_value, test.looks) == (again.p_value, again.looks)
    assert (test.high, test.max_rollouts, again.pairs) == (0.85, 32, step)


def test_a_pending_proposal_tells_how_far_its_test_has_come(service: Service) -> None:
    made = service.pending(service.first)
    assert service.stored(made).test is None
    service.measure(made, 1, 8, 4)
    test = service.stored(made).test
    assert test is not None
    assert (test.rule, test.looks) == ("confident", ())
    assert test.p_value == pytest.approx(0.0385, abs=1e-4)


def test_a_rejected_candidate_frees_the_slot_and_stays_on_record(service: Service) -> None:
    made = service.pending(service.first)
    decided = service.measure(made, 1, 8, 0, PAPER)
    assert decided is not None
    assert decided.state == "rejected"
    assert "0.000 after" in decided.reason
    assert service.states() == {"v0": "active", "v1": "rejected"}
    again = service.pending(service.first, "g2")
    assert again.candidate_id == f"{service.first}-v2"


def test_the_published_rule_compares_with_the_accuracy_that_asked(service: Service) -> None:
    made = service.pending(service.first)
    # The fresh parent group (3 of 8) would say "not harder"; the stored 8 of 8 says it is.
    decided = service.measure(made, 1, 3, 5, PAPER)
    assert decided is not None
    assert decided.state == "accepted"


def test_a_pair_needs_both_groups_of_one_step_and_one_policy_version(service: Service) -> None:
    made = service.pending(service.first)
    common: dict[str, Any] = {"proposal_id": made.id, "settings": PAPER}
    record = service.measurements.record
    one = service.outcome(service.first, 8, "a", step=1, purpose="measure_parent", **common)
    other = service.outcome(
        f"{service.first}-v1", 4, "b", step=2, purpose="measure_candidate", **common
    )
    newer = service.outcome(
        f"{service.first}-v1", 4, "c", step=1, purpose="measure_candidate", **common
    ).model_copy(update={"policy_version": 2})
    assert [record(one), record(other), record(newer)] == [None, None, None]
    assert service.stored(made).parent_counts == ()
    assert service.states() == {"v0": "active", "v1": "pending"}


def test_what_the_infrastructure_lost_is_no_failure(service: Service) -> None:
    made = service.pending(service.first)
    assert service.measure(made, 1, 0, 0, PAPER, measured=0) is None
    assert service.stored(made).candidate_counts == ()
    decided = service.measure(made, 2, 4, 2, PAPER, measured=4)  # half was lost, half succeeded
    assert decided is not None
    assert decided.candidate_counts == ((2, 4),)
    assert decided.state == "accepted"


def test_measurements_that_arrive_again_add_no_pair_and_move_nothing(service: Service) -> None:
    made = service.pending(service.first)
    settings = adapt_settings(max_rollouts=64)
    for _ in range(3):
        assert service.measure(made, 1, 8, 7, settings) is None
    assert service.stored(made).candidate_counts == ((7, 8),)
    decided = service.measure(made, 2, 8, 4, PAPER)
    assert decided is not None
    for _ in range(2):  # after the verdict, too
        assert service.measure(made, 2, 8, 4, PAPER) is None
    assert service.measure(made, 3, 8, 0, PAPER) is None  # was in flight when the verdict fell
    assert service.stored(made) == decided


def test_pairs_whose_halves_race_are_counted_once_and_decide_once(service: Service) -> None:
    made = service.pending(service.first)
    halves = service.pair(made, 1, 8, 4, PAPER)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(service.measurements.record, halves * 4))
    assert len([proposal for proposal in found if proposal is not None]) == 1
    assert service.stored(made).candidate_counts == ((4, 8),)
    assert service.states() == {"v0": "replaced", "v1": "active"}


def test_a_null_control_is_measured_and_never_taken(service: Service) -> None:
    same = TaskDraft(params={"shelf": 1, "colour": "red"}, instruction="Put a red ball on shelf 1.")
    made = service.pending(service.first, draft=same, null_control=True)
    decided = service.measure(made, 1, 8, 4, PAPER)
    assert decided is not None
    assert (decided.state, decided.verdict) == ("rejected", "accepted")
    assert decided.reason.startswith("null control")
    assert service.states() == {"v0": "active", "v1": "rejected"}
    shown = service.store.pool("p")
    assert (shown.proposals, shown.null_control) == ({}, {"accepted": 1})


def test_a_parent_that_left_meanwhile_is_not_replaced(service: Service) -> None:
    made = service.pending(service.first)
    with service.database.write() as session:
        session.get_one(TaskRow, service.first).state = "retired"
    decided = service.measure(made, 1, 8, 4, PAPER)
    assert decided is not None
    assert (decided.state, decided.verdict) == ("rejected", "accepted")
    assert service.states() == {"v0": "retired", "v1": "rejected"}


WRITES = ("INSERT", "UPDATE")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_crash_at_any_write_of_a_verdict_leaves_the_slot_before_it(
    service: Service, number: int
) -> None:
    made = service.pending(service.first)
    first, last = service.pair(made, 1, 8, 4, PAPER)
    service.measurements.record(first)
    with crash_at(service.database, *WRITES, number=number):
        service.measurements.record(last)
    assert service.states() == {"v0": "active", "v1": "pending"}
    assert service.stored(made).candidate_counts == ()
    decided = service.measurements.record(last)  # delivered again
    assert decided is not None
    assert decided.state == "accepted"
    assert service.states() == {"v0": "replaced", "v1": "active"}


@pytest.mark.parametrize("number", [1, 2])
def test_a_crash_at_any_write_of_a_proposal_leaves_none(service: Service, number: int) -> None:
    service.measurements.record(service.outcome(service.first, 8, "g"))
    with crash_at(service.database, *WRITES, number=number):
        service.propose(service.first, "g")
    assert service.states() == {"v0": "active"}
    assert service.store.pool("p").proposals == {}
    assert service.pending(service.first, "g").state == "pending"
