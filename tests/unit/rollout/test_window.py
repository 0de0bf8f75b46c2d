"""The window: worked cases, misuse, and the invariant under any schedule."""

import doctest
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triforge.errors import ConflictError, InputError
from triforge.rollout import window as module
from triforge.rollout.window import Offer, Window


def _window(bound=0, rounds=(("a", "b"),), steps=9, **options):
    window = Window(bound, steps, **options)
    for groups in rounds:
        window.offer(groups)
    return window


def _next(window):
    """The next round that may be offered, if any."""
    return next(iter(window.open_rounds()), None)


def _step(window, *arrivals, version=None):
    for group in arrivals:
        window.arrived(group)
    batch = window.begin()
    window.advance(window.versions[0] + 1 if version is None else version, 0)
    return batch


def test_the_worked_example_in_the_docstring_runs():
    assert doctest.testmod(module).failed == 0


def test_a_bound_of_zero_is_the_synchronous_loop():
    window = _window(0)
    assert _next(window) is None
    window.arrived("b")
    assert window.batch() is None
    assert window.waiting_for == ("a",)
    window.arrived("a")
    assert window.begin() == ("a", "b")
    assert _next(window) is None  # the slots are free when the new weights are live
    window.advance(1, 0)
    assert (_next(window), window.versions, window.step) == (2, (1, 0), 1)


def test_a_bound_of_one_plays_one_step_ahead():
    window = _window(1, [("a", "b"), ("c", "d")])
    assert _next(window) is None
    assert _step(window, *"dcb") == ("b", "c")
    assert _next(window) == 3
    window.offer(("e", "f"))
    assert window.batch() is None  # a may not become staler than 1, so d alone does not make a step
    window.arrived("e")
    assert window.batch() is None
    window.arrived("a")
    assert window.begin() == ("a", "d")
    assert [window.offers[g].versions[0] for g in "ad"] == [0, 0]
    assert window.versions[0] == 1


def test_a_slow_group_is_waited_for_in_time_even_with_a_wide_bound():
    # Two slow groups of version 0 would both have to be trained at version 2, which has room for one.
    window = _window(2, [("a",), ("slow1",), ("slow2",)])
    _step(window, "a")
    window.offer(("b",))
    window.arrived("b")
    assert window.batch() is None
    window.arrived("slow2")
    assert window.batch() == ("slow2",)


def test_no_batch_waits_for_a_slow_group_whose_old_steps_are_masked():
    window = _window(1, [("slow",), ("b",)], late="mask")
    for name in ("c", "d", "e"):
        _step(window, *(g for g in window.waiting_for if g != "slow"))
        window.offer((name,))
    assert window.versions[0] == 3
    assert window.offers["slow"] == Offer(round=1, step=0, versions=(0, 0))
    window.arrived("slow")
    assert window.batch() == ("slow",)


def test_small_rounds_make_small_steps_and_empty_ones_train_nothing():
    window = _window(1, [("a",), ()], steps=3)
    assert _step(window, "a") == ("a",)
    window.offer(("b", "c", "d"))
    assert _step(window, "c", version=1) == ()
    assert window.batch() is None
    assert _step(window, "b", "d") == ("b", "c", "d")


def test_a_run_offers_as_many_rounds_as_it_has_steps():
    window = _window(3, [("a",), ("b",)], steps=2)
    assert _next(window) is None
    _step(window, "a")
    assert _next(window) is None
    _step(window, "b")
    assert window.offers == {}


def test_a_step_that_learned_nothing_publishes_the_same_version():
    window = _window(0)
    _step(window, "a", "b", version=0)
    assert (window.versions[0], _next(window)) == (0, 2)


def test_other_numbers_for_the_same_weights_begin_what_is_in_flight_afresh():
    window = _window(1, [("a",), ("b",)])
    window.arrived("a")
    window.begin()
    window.renumber(7, 5)
    assert (window.training, window.waiting_for) == (None, ("a", "b"))
    assert window.offers["a"] == Offer(round=1, step=0, versions=(7, 5))
    window.arrived("b")
    window.begin()
    window.advance(8, 5)
    assert window.batch() is None  # a is due by now, whatever its version is called


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda w: w.offer(("c",)), "room for a round"),
        (lambda w: w.arrived("z"), "expected a group in flight"),
        (lambda w: w.begin(), "before its batch"),
        (lambda w: w.advance(1, 0), "without a trained batch"),
    ],
)
def test_misuse_raises_and_changes_nothing(misuse, sentence):
    window = _window(0)
    window.arrived("a")
    before = window.snapshot()
    with pytest.raises(ConflictError, match=sentence):
        misuse(window)
    assert window.snapshot() == before


@pytest.mark.parametrize("names", [("a",), ("c", "c")])
def test_a_group_is_in_flight_once(names):
    window = _window(1, [("a",)])
    with pytest.raises(ConflictError, match="not in flight"):
        window.offer(names)


@pytest.mark.parametrize("versions", [(-1, 0), (2, 0), (0, 2)])
def test_versions_do_not_skip(versions):
    window = _window(0)
    window.arrived("a")
    window.arrived("b")
    window.begin()
    with pytest.raises(ConflictError, match="after 0, expected 1"):
        window.advance(*versions)


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (0, 1, 2), (0, 1, -1)])
def test_impossible_numbers_are_refused(numbers):
    bound, steps, step = numbers
    with pytest.raises(InputError, match="no step past the last"):
        Window(bound, steps, step=step)


def _possible(window):
    """Everything that may happen now: (name, arguments). Training and publishing are as likely as arrivals."""
    moves = [("arrived", (group,)) for group in window.waiting_for]
    moves += [("offer", None)] * 2 * (_next(window) is not None)
    moves += [("begin", ())] * 2 * (window.batch() is not None)
    if window.training is not None:
        policy, reward = window.versions
        moves += [("advance", (policy + 1, reward))] * 4 + [("advance", (policy, reward + 1))]
    return moves


@settings(max_examples=60)
@given(
    st.integers(0, 3),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
    st.sampled_from(["wait", "wait", "mask"]),
)
def test_no_schedule_trains_a_group_staler_than_the_bound_or_gets_stuck(bound, steps, random, late):
    window, made, trained = Window(bound, steps, late=late), 0, []
    while moves := _possible(window):
        name, arguments = random.choice(moves)
        if name == "offer":
            size = random.randint(0, 3)
            arguments = ([f"g{made + n}" for n in range(size)],)
            made += size
        result = getattr(window, name)(*arguments)
        if name == "begin":
            trained += result
            ages = [window.versions[0] - window.offers[g].versions[0] for g in result]
            assert late == "mask" or max(ages, default=0) <= bound
        assert len({offer.round for offer in window.offers.values()}) <= made
        state = json.loads(json.dumps(window.snapshot()))
        arrived = window.offers.keys() - set(window.waiting_for)
        window = Window.restore(state)
        assert window.snapshot() == state
        for group in arrived:
            window.arrived(group)
    assert window.step == steps
    assert sorted(trained) == sorted(f"g{n}" for n in range(made))
