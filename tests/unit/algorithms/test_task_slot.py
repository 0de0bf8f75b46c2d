"""The life of a task slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforge.algorithms.task_slot import Pending, TaskSlot
from triforge.errors import ConflictError


def test_an_accepted_rewrite_becomes_the_active_version():
    slot = TaskSlot("a").propose("b", "harder")
    assert (slot.state, slot.active_id, slot.pending) == ("pending", "a", Pending("b", "harder"))
    slot = slot.accept("b")
    assert (slot.state, slot.active_id, slot.ancestors) == ("active", "b", ("a",))


def test_a_rejected_rewrite_leaves_the_active_version_and_is_remembered():
    slot = TaskSlot("a").propose("b", "easier").reject("b")
    assert slot == TaskSlot("a", fates=(("b", "rejected"),))


def test_an_accepted_rewrite_can_be_taken_back():
    slot = TaskSlot("a").propose("b", "harder").accept("b").roll_back()
    assert slot == TaskSlot("a", fates=(("b", "accepted"), ("b", "rolled_back")))


PENDING = TaskSlot("a").propose("b", "harder")


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda: PENDING.propose("c", "harder"), "while b is pending"),
        (lambda: TaskSlot("a").propose("a", "harder"), "never held"),
        (lambda: PENDING.reject("b").propose("b", "harder"), "never held"),
        (lambda: PENDING.accept("b").propose("a", "harder"), "never held"),
        (lambda: TaskSlot("a").accept("b"), r"the pending rewrite \(nothing\)"),
        (lambda: PENDING.accept("c"), r"the pending rewrite \(b\)"),
        (lambda: TaskSlot("a").reject("b"), r"the pending rewrite \(nothing\)"),
        (lambda: TaskSlot("a").roll_back(), "with no ancestor"),
        (lambda: PENDING.roll_back(), "with b pending"),
    ],
)
def test_misuse_raises(misuse, sentence):
    with pytest.raises(ConflictError, match=sentence):
        misuse()


@given(st.lists(st.sampled_from(["propose", "accept", "reject", "roll_back"]), max_size=30))
def test_any_legal_history_keeps_one_fate_a_verdict_and_one_active_version(moves):
    slot, made, verdicts = TaskSlot("t0"), 0, 0
    for move in moves:
        if move == "propose" and not slot.pending:
            made += 1
            slot = slot.propose(f"t{made}", "harder")
        elif move in ("accept", "reject") and slot.pending:
            slot, verdicts = getattr(slot, move)(slot.pending.candidate_id), verdicts + 1
        elif move == "roll_back" and slot.ancestors and not slot.pending:
            slot, verdicts = slot.roll_back(), verdicts + 1
    assert len(slot.fates) == verdicts
    assert (*slot.ancestors, slot.active_id)[0] == "t0"
    accepted = {name for name, fate in slot.fates if fate == "accepted"}
    back = {name for name, fate in slot.fates if fate == "rolled_back"}
    assert {*slot.ancestors, slot.active_id} - {"t0"} == accepted - back
