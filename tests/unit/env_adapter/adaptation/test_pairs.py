"""Pairs that count, pairs that are played again with a reason, and the pending proposals of another run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.env_adapter.adaptation.measurement import MAX_DISCARDED
from services.env_adapter.adaptation.settings import AdaptSettings
from services.env_adapter.pools.plans import Planner
from tests.sections import adapt_settings
from triforge.types import PlanRequest, Proposal

if TYPE_CHECKING:
    from tests.unit.env_adapter.conftest import Service

PAPER = adapt_settings(acceptance="paper")


def play(
    service: Service,
    made: Proposal,
    step: int,
    parent: tuple[int, int],
    candidate: tuple[int, int],
    *,
    measured: tuple[int, int] = (8, 8),
    settings: AdaptSettings = PAPER,
    run: str = "r",
) -> Proposal | None:
    """Count a pair whose groups were sampled by the versions (oldest, newest); 8 of 8 succeed, then 4 of 8."""
    found = None
    for purpose, task_id, versions, successes, count in (
        ("measure_parent", made.parent_id, parent, 8, measured[0]),
        ("measure_candidate", made.candidate_id, candidate, 4, measured[1]),
    ):
        outcome = service.outcome(
            str(task_id), min(successes, count), f"{run}-{purpose}-{step}", step=step,
            purpose=purpose, proposal_id=made.id, settings=settings, measured=count,
            newest_version=versions[1],
        )  # fmt: skip
        outcome = outcome.model_copy(update={"policy_version": versions[0], "run_id": run})
        found = service.measurements.record(outcome)
    return found


@pytest.mark.parametrize(
    ("parent", "candidate"),
    [((4, 4), (5, 5)), ((4, 5), (4, 4)), ((4, 4), (4, 5)), ((5, 5), (4, 4))],
)
def test_versions_further_apart_than_allowed_do_not_count_and_are_measured_again(
    service: Service, parent: tuple[int, int], candidate: tuple[int, int]
) -> None:
    made = service.pending(service.first)
    assert play(service, made, 1, parent, candidate) is None
    stored = service.stored(made)
    assert (stored.state, stored.parent_counts) == ("pending", ())
    assert stored.discarded == (
        "step 1: the policy versions 4 to 5 are more than 0 apart (adaptation.max_version_gap)",
    )
    planned = Planner(service.database).plan(
        "p", PlanRequest(run_id="r", step=2, kind="train", groups=3, max_pending=2)
    )
    assert [g.purpose for g in planned.items][:2] == ["measure_parent", "measure_candidate"]
    assert play(service, made, 2, (6, 6), (6, 6)) is not None


def test_versions_as_far_apart_as_allowed_count(service: Service) -> None:
    made = service.pending(service.first)
    wide = PAPER.model_copy(update={"version_gap": 2})
    decided = play(service, made, 1, (4, 5), (5, 6), settings=wide)
    assert decided is not None
    assert decided.candidate_counts == ((4, 8),)


@pytest.mark.parametrize(("measured", "who"), [((0, 8), "parent"), ((8, 0), "candidate")])
def test_a_half_that_the_infrastructure_lost_is_named_and_measured_again(
    service: Service, measured: tuple[int, int], who: str
) -> None:
    made = service.pending(service.first)
    assert play(service, made, 1, (4, 4), (4, 4), measured=measured) is None
    assert service.stored(made).discarded == (f"step 1: no rollout of the {who} could be measured",)
    assert service.states() == {"v0": "active", "v1": "pending"}


def test_a_proposal_whose_pairs_never_count_is_given_up_without_a_verdict(service: Service) -> None:
    made = service.pending(service.first)
    found = [play(service, made, step, (1, 9), (1, 9)) for step in range(MAX_DISCARDED + 1)]
    assert found[:-1] == [None] * MAX_DISCARDED
    last = found[-1]
    assert last is not None
    assert (last.state, last.verdict) == ("rejected", "")
    assert f"{MAX_DISCARDED + 1} pairs" in last.reason
    assert service.states() == {"v0": "active", "v1": "rejected"}


def plan(service: Service, run: str, **more: Any) -> list[str]:
    request = PlanRequest.model_validate(
        {"run_id": run, "step": 1, "kind": "train", "groups": 4, "max_pending": 2, **more}
    )
    return [group.purpose for group in Planner(service.database).plan("p", request).items]


def test_what_a_run_leaves_pending_is_withdrawn_when_the_next_one_plans(service: Service) -> None:
    made = service.pending(service.first)
    assert plan(service, "later") == ["train", "train"]
    stored = service.stored(made)
    assert (stored.state, stored.verdict, stored.run_id) == ("rejected", "", "r")
    assert stored.reason == (
        "withdrawn: its run was over before the verdict; run later makes its own"
    )
    assert service.states() == {"v0": "active", "v1": "rejected"}
    assert play(service, made, 1, (4, 4), (4, 4)) is None  # of the run that was over; moves nothing
    assert service.states() == {"v0": "active", "v1": "rejected"}


def test_a_run_that_measures_nothing_leaves_what_is_pending_alone(service: Service) -> None:
    made = service.pending(service.first)
    assert plan(service, "other", max_pending=0) == ["train", "train"]
    assert service.stored(made) == made


def test_a_run_keeps_its_own_proposals_from_step_to_step(service: Service) -> None:
    made = service.pending(service.first)
    for step in (1, 2):
        assert "measure_parent" in plan(service, "r", step=step)
    assert service.stored(made) == made
