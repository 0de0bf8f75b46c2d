"""Changes that people make to pools, slots and proposals, each whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.pools.changes import Change, Changes, PoolChange, Rollback, TaskAction
from tests.sections import adapt_settings
from tests.unit.env_adapter.conftest import Service, crash_at
from triforge.errors import ConflictError, NotFoundError
from triforge.rollout.protocols import TaskDraft
from triforge.types import Proposal

DANA = Change(by="dana", reason="a test")
PAPER = adapt_settings(acceptance="paper", max_pending=9)


@pytest.fixture
def changes(service: Service) -> Changes:
    return Changes(service.database)


def accepted(service: Service, parent: str, shelf: int, group: str) -> Proposal:
    """A rewrite that the published rule takes at once."""
    draft = TaskDraft(params={"shelf": shelf, "colour": "blue"}, instruction=f"blue on {shelf}")
    proposal = service.pending(parent, group, draft=draft)
    service.measure(proposal, step=shelf, parent=8, candidate=4, settings=PAPER)
    return service.stored(proposal)


def rollback(to: str) -> Rollback:
    return Rollback(to=to, by="dana", reason="a test")


def current(service: Service) -> Any:
    found = service.store.lineage(service.first)
    return next(v.task for v in found.versions if v.task.id == found.active_id)


# ---- pools ----


def test_retiring_a_pool_withdraws_what_is_open(service: Service, changes: Changes) -> None:
    proposal = service.pending(service.first)
    changes.set_pool("p", "retire", DANA)
    stored = service.stored(proposal)
    assert (stored.state, stored.verdict) == ("rejected", "")
    assert stored.reason == "withdrawn: the pool was retired by dana: a test"
    assert service.states() == {"v0": "active", "v1": "rejected"}


def test_a_paused_pool_gets_no_proposals(service: Service, changes: Changes) -> None:
    changes.set_pool("p", "pause", DANA)
    assert "the pool is paused" in str(service.propose(service.first))


# ---- slots ----


def test_a_task_is_paused_resumed_and_retired_for_good(service: Service, changes: Changes) -> None:
    assert changes.set_task(service.first, "pause", DANA) == service.first
    assert service.states() == {"v0": "paused"}
    changes.set_task(service.first, "resume", DANA)
    assert service.states() == {"v0": "active"}
    changes.set_task(service.first, "retire", DANA)
    changes.set_task(service.first, "retire", DANA)
    for action in ("resume", "pause"):
        with pytest.raises(ConflictError, match="final"):
            changes.set_task(service.first, action, DANA)


@pytest.mark.parametrize("action", ["pause", "retire", "pin"])
def test_a_slot_that_rests_or_is_pinned_loses_its_open_proposal(
    service: Service, changes: Changes, action: TaskAction
) -> None:
    proposal = service.pending(service.first)
    changes.set_task(service.first, action, DANA)
    assert service.stored(proposal).state == "rejected"
    assert service.states()["v1"] == "rejected"
    # What was being played when it happened is counted, and decides nothing any more.
    assert service.measure(proposal, step=1, parent=8, candidate=4, settings=PAPER) is None
    assert service.states()["v1"] == "rejected"
    assert len(service.store.detail(f"{service.first}-v1").measurements) == 1


def test_a_pinned_slot_is_never_rewritten_until_it_is_unpinned(
    service: Service, changes: Changes
) -> None:
    accepted(service, service.first, 5, "g")
    changes.set_task(service.first, "pin", DANA)
    assert all(v.task.pinned for v in service.store.lineage(service.first).versions)
    assert "pinned" in str(service.propose(current(service).id, "h"))
    changes.set_task(service.first, "unpin", DANA)
    assert service.pending(current(service).id, "i")


def test_a_slot_may_be_named_by_any_of_its_versions(service: Service, changes: Changes) -> None:
    accepted(service, service.first, 5, "g")
    assert changes.set_task(service.first, "pause", DANA) == f"{service.first}-v1"
    assert service.states() == {"v0": "replaced", "v1": "paused"}


# ---- roll back ----


def test_rolling_back_plays_the_ancestor_as_a_new_version(
    service: Service, changes: Changes
) -> None:
    first = accepted(service, service.first, 5, "g")
    second = accepted(service, f"{service.first}-v1", 6, "h")
    root = service.store.task(service.first)
    made = changes.roll_back(service.first, rollback(service.first))
    assert made == f"{service.first}-v3"
    assert service.states() == {
        "v0": "replaced", "v1": "rolled_back", "v2": "rolled_back", "v3": "active",
    }  # fmt: skip
    task = current(service)
    assert (task.parent_id, task.params, task.instruction) == (
        root.id, root.params, root.instruction,
    )  # fmt: skip
    for proposal in (first, second):
        stored = service.stored(proposal)
        assert (stored.state, stored.verdict) == ("rolled_back", "accepted")
        assert "rolled back by dana: a test" in stored.reason
    lineage = service.store.lineage(service.first)
    assert lineage.versions[0].children == (f"{service.first}-v1", f"{service.first}-v3")
    assert lineage.versions[3].made_by is None


def test_rolling_back_to_the_middle_undoes_only_what_came_after(
    service: Service, changes: Changes
) -> None:
    first = accepted(service, service.first, 5, "g")
    accepted(service, f"{service.first}-v1", 6, "h")
    changes.roll_back(service.first, rollback(f"{service.first}-v1"))
    assert service.states() == {
        "v0": "replaced", "v1": "replaced", "v2": "rolled_back", "v3": "active",
    }  # fmt: skip
    assert service.stored(first).state == "accepted"
    assert current(service).params == service.store.task(f"{service.first}-v1").params


def test_rolling_back_twice_is_rolling_back_once(service: Service, changes: Changes) -> None:
    accepted(service, service.first, 5, "g")
    made = changes.roll_back(service.first, rollback(service.first))
    assert changes.roll_back(service.first, rollback(service.first)) == made
    assert len(service.states()) == 3


def test_rolling_back_withdraws_the_open_rewrite_of_what_is_undone(
    service: Service, changes: Changes
) -> None:
    accepted(service, service.first, 5, "g")
    draft = TaskDraft(params={"shelf": 6, "colour": "blue"}, instruction="blue on 6")
    waiting = service.pending(f"{service.first}-v1", "h", draft=draft)
    changes.roll_back(service.first, rollback(service.first))
    assert service.states() == {
        "v0": "replaced", "v1": "rolled_back", "v2": "rejected", "v3": "active",
    }  # fmt: skip
    assert service.stored(waiting).reason == "withdrawn: the task was rolled back by dana: a test"
    assert isinstance(service.propose(f"{service.first}-v3", "i"), Proposal)


def test_a_paused_slot_is_rolled_back_and_stays_paused(service: Service, changes: Changes) -> None:
    accepted(service, service.first, 5, "g")
    changes.set_task(service.first, "pause", DANA)
    changes.roll_back(service.first, rollback(service.first))
    assert service.states() == {"v0": "replaced", "v1": "rolled_back", "v2": "paused"}


def test_only_to_an_ancestor_can_be_rolled_back(service: Service, changes: Changes) -> None:
    accepted(service, service.first, 5, "g")
    for to in (f"{service.first}-v1", service.second, "nothing"):
        with pytest.raises(ConflictError, match=f"expected an ancestor of .*: {service.first}"):
            changes.roll_back(service.first, rollback(to))
    with pytest.raises(NotFoundError):
        changes.roll_back("nothing", rollback(service.first))
    changes.set_task(service.first, "retire", DANA)
    with pytest.raises(ConflictError, match="final"):
        changes.roll_back(service.first, rollback(service.first))


# ---- approval ----


@pytest.fixture
def waiting(service: Service, changes: Changes) -> Proposal:
    changes.set_approval("p", PoolChange(approval="manual"))
    return accepted(service, service.first, 5, "g")


def test_what_the_test_accepts_waits_for_a_person_where_the_pool_asks_for_one(
    service: Service, waiting: Proposal, changes: Changes
) -> None:
    assert (waiting.state, waiting.verdict) == ("awaiting", "accepted")
    assert service.states() == {"v0": "active", "v1": "awaiting"}
    assert "waits for a person" in str(service.propose(service.first, "h"))
    changes.decide(waiting.id, "approve", DANA)
    changes.decide(waiting.id, "approve", DANA)
    assert service.states() == {"v0": "replaced", "v1": "active"}
    stored = service.stored(waiting)
    assert stored.state == "accepted"
    assert stored.reason == f"{waiting.reason}; accepted by hand by dana: a test"
    with pytest.raises(ConflictError, match="roll its task back instead"):
        changes.decide(waiting.id, "reject", DANA)


def test_what_a_person_rejects_is_not_taken(
    service: Service, waiting: Proposal, changes: Changes
) -> None:
    changes.decide(waiting.id, "reject", DANA)
    changes.decide(waiting.id, "reject", DANA)
    assert service.states() == {"v0": "active", "v1": "rejected"}
    stored = service.stored(waiting)
    assert (stored.state, stored.verdict) == ("rejected", "accepted")
    with pytest.raises(ConflictError, match="rejected"):
        changes.decide(waiting.id, "approve", DANA)


def test_what_is_still_measured_can_be_rejected_but_not_approved(
    service: Service, changes: Changes
) -> None:
    proposal = service.pending(service.first)
    with pytest.raises(ConflictError, match="pending"):
        changes.decide(proposal.id, "approve", DANA)
    changes.decide(proposal.id, "reject", DANA)
    assert service.states() == {"v0": "active", "v1": "rejected"}


def test_pinning_takes_back_what_waits_for_a_person(
    service: Service, waiting: Proposal, changes: Changes
) -> None:
    changes.set_task(service.first, "pin", DANA)
    assert service.stored(waiting).state == "rejected"
    assert service.states() == {"v0": "active", "v1": "rejected"}


@pytest.mark.parametrize("statement", ["UPDATE tasks", "UPDATE proposals"])
def test_a_crash_while_a_rewrite_replaces_its_task_leaves_the_old_one(
    service: Service, waiting: Proposal, changes: Changes, statement: str
) -> None:
    with crash_at(service.database, statement):
        changes.decide(waiting.id, "approve", DANA)
    assert service.states() == {"v0": "active", "v1": "awaiting"}
    assert service.stored(waiting) == waiting
    changes.decide(waiting.id, "approve", DANA)
    assert service.states() == {"v0": "replaced", "v1": "active"}


@pytest.mark.parametrize("statement", ["INSERT INTO tasks", "UPDATE proposals"])
def test_a_crash_while_a_task_is_rolled_back_leaves_it_as_it_was(
    service: Service, changes: Changes, statement: str
) -> None:
    accepted(service, service.first, 5, "g")
    with crash_at(service.database, statement):
        changes.roll_back(service.first, rollback(service.first))
    assert service.states() == {"v0": "replaced", "v1": "active"}
    changes.roll_back(service.first, rollback(service.first))
    assert service.states() == {"v0": "replaced", "v1": "rolled_back", "v2": "active"}
