"""The window of slots: worked cases, misuse, and the invariant under any schedule."""

import doctest
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triforge.errors import ConflictError, InputError
from triforge.rollout import window as module
from triforge.rollout.window import Window


def _window(bound=0, per_step=2, offers=()):
    window = Window(bound, per_step)
    for group in offers:
        window.offer(group)
    return window


def test_the_worked_example_in_the_docstring_runs():
    assert doctest.testmod(module) == (0, 14)


def test_a_bound_of_zero_is_the_synchronous_loop():
    window = _window(0, 2, ["a", "b"])
    assert window.free_slots == 0
    window.arrived("b")
    assert window.batch() == ()
    assert window.waiting_for == ("a",)
    window.arrived("a")
    assert window.trained(window.batch()) == 0
    assert window.free_slots == 0  # the slots are free when the new weights are live
    window.publish(1)
    assert (window.free_slots, window.version) == (2, 1)


def test_a_bound_of_one_plays_one_step_ahead():
    window = _window(1, 2, ["a", "b", "c", "d"])
    assert window.free_slots == 0
    for group in "dcb":
        window.arrived(group)
    assert window.batch() == ("b", "c")
    window.trained(("b", "c"))
    assert window.batch() == ()  # one step at a time
    window.publish(1)
    assert window.free_slots == 2
    assert window.batch() == ()  # a may not become staler than 1, so d alone does not make a step
    window.arrived("a")
    assert window.trained(window.batch()) == 1


def test_a_slow_group_is_waited_for_in_time_even_with_a_wide_bound():
    # Two slow groups of version 0 would both have to be trained at version 2, which has room for one.
    window = _window(2, 1, ["a", "slow1", "slow2"])
    window.arrived("a")
    window.trained(("a",))
    window.publish(1)
    window.offer("b")
    window.arrived("b")
    assert window.batch() == ()
    window.arrived("slow2")
    assert window.batch() == ("slow2",)


def test_a_lost_group_frees_its_slot_for_a_fresh_one():
    window = _window(0, 1, ["a"])
    window.dropped("a")
    window.offer("a2")
    window.arrived("a2")
    assert window.batch() == ("a2",)
    assert window.in_flight == ("a2",)


def test_a_step_that_learned_nothing_publishes_the_same_version():
    window = _window(0, 1, ["a"])
    window.arrived("a")
    window.trained(("a",))
    window.publish(0)
    assert (window.version, window.free_slots) == (0, 1)


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda w: w.offer("a"), "given 'a' again"),
        (lambda w: w.offer("c"), "expected a free slot"),
        (lambda w: w.arrived("z"), "expected a group in flight"),
        (lambda w: w.arrived("a"), "expected it not to have arrived"),
        (lambda w: w.dropped("z"), "expected a group in flight"),
        (lambda w: w.dropped("a"), "expected it not to have arrived"),
        (lambda w: w.trained(()), "the groups of batch"),
        (lambda w: w.trained(("a",)), "the groups of batch"),
        (lambda w: w.publish(1), "without a trained batch"),
    ],
)
def test_misuse_raises_and_changes_nothing(misuse, sentence):
    window = _window(0, 2, ["a", "b"])
    window.arrived("a")
    before = window.snapshot()
    with pytest.raises(ConflictError, match=sentence):
        misuse(window)
    assert window.snapshot() == before


@pytest.mark.parametrize("version", [-1, 2])
def test_versions_do_not_skip(version):
    window = _window(0, 1, ["a"])
    window.arrived("a")
    window.trained(("a",))
    with pytest.raises(ConflictError, match="after 0, expected 1"):
        window.publish(version)


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (0, 0, 0), (0, 1, -1)])
def test_impossible_numbers_are_refused(numbers):
    bound, per_step, version = numbers
    with pytest.raises(InputError, match="expected at least 0, 1 and 0"):
        Window(bound, per_step, version=version)


@pytest.mark.parametrize(
    "change",
    [
        {"offered": [["a", 0], ["b", 0], ["c", 0]]},
        {"offered": [["a", 5]]},
        {"offered": [["a"]]},
        {"arrived": ["z"]},
        {"training": ["b", "a"]},
        {"arrived": ["a", "b"], "training": ["a"]},
        {"version": 9},
        {"version": "x"},
    ],
)
def test_a_snapshot_no_window_can_be_in_is_refused(change):
    window = _window(0, 2, ["a", "b"])
    with pytest.raises(InputError, match="given a snapshot"):
        Window.restore({**window.snapshot(), **change})


def test_a_snapshot_with_a_missing_part_is_refused():
    with pytest.raises(InputError, match="does not parse"):
        Window.restore({"staleness_bound": 0})


def _possible(window):
    """Everything that may happen now: (name, argument). Training and publishing are offered as often as arrivals."""
    moves = [("arrived", group) for group in window.waiting_for]
    moves += [("dropped", group) for group in window.waiting_for[:1]]
    moves += [("offer", None)] * 2 * bool(window.free_slots)
    moves += [("trained", batch) for batch in [window.batch()] * 2 if batch]
    if window.snapshot()["training"]:
        moves += [("publish", window.version + 1)] * 4 + [("publish", window.version)]
    return moves


@settings(max_examples=60)
@given(
    st.integers(0, 3), st.integers(1, 3), st.randoms(use_true_random=False), st.integers(50, 150)
)
def test_no_schedule_trains_a_group_staler_than_the_bound_or_gets_stuck(
    bound, per_step, random, length
):
    window, made, offered_at = Window(bound, per_step), 0, {}
    for _ in range(length):
        name, argument = random.choice(_possible(window))
        if name == "offer":
            argument = f"g{made}"
            offered_at[argument] = window.version
            made += 1
        result = getattr(window, name)(argument)
        if name == "trained":
            assert result == window.version - min(offered_at[g] for g in argument)
            assert result <= bound
        assert 0 <= window.free_slots <= (bound + 1) * per_step
        state = json.loads(json.dumps(window.snapshot()))
        window = Window.restore(state)
        assert window.snapshot() == state
    if window.snapshot()["training"]:
        window.publish(window.version + 1)
    while window.free_slots:
        window.offer(f"g{made}")
        made += 1
    for group in window.waiting_for:
        window.arrived(group)
    assert len(window.batch()) == per_step  # once all have arrived there is always a next step
