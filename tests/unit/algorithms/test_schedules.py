"""Step sizes: where they begin, where they end, and what is refused."""

import pytest

from triforge.algorithms.schedules import learning_rate, vote_share
from triforge.config import parse
from triforge.errors import ConfigError


def test_a_constant_step_size_rises_and_stays():
    rates = [learning_rate(u, highest=2.0, warmup=4) for u in range(6)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_linear_fall_ends_at_its_share_and_stays_there():
    options = {"highest": 1.0, "schedule": "linear", "warmup": 2, "total": 6, "final_share": 0.2}
    rates = [learning_rate(u, **options) for u in range(8)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_a_cosine_is_half_way_down_in_the_middle():
    options = {"highest": 1.0, "schedule": "cosine", "total": 8}
    assert learning_rate(0, **options) == 1.0
    assert learning_rate(4, **options) == pytest.approx(0.5)
    assert learning_rate(8, **options) == learning_rate(80, **options) == pytest.approx(0.0)


def test_a_fall_without_an_end_is_refused():
    given = {"schedule": "linear", "warmup_updates": 5, "schedule_updates": 5}
    with pytest.raises(ConfigError, match="schedule_updates: given 5"):
        parse({"trainer": {"policy": given}})


def test_votes_gain_and_lose_their_weight_between_the_given_steps():
    shares = [vote_share(step, (1, 3, 4, 6)) for step in range(8)]
    assert shares == [0.0, 0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    assert [vote_share(step, (0, 0, 2, 2)) for step in (1, 2, 3)] == [1.0, 0.0, 0.0]
    assert vote_share(9, None) == 1.0


def voted(steps):
    """A document as a file gives it."""
    return parse({"algorithm": {"overrides": {"vote_steps": steps}}}).algorithm.resolved.vote_steps


def test_a_document_sets_the_steps_of_the_votes():
    assert voted([0, 0, 10, 20]) == (0, 0, 10, 20)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([3, 1, 4, 6], r"expected four steps of at least 0, none before the one in front of it"),
        ([1, 2], r"given \[1, 2\], allowed 4 whole numbers or 'none'"),
    ],
)
def test_steps_that_go_back_are_refused(steps, expected):
    with pytest.raises(ConfigError, match=f"vote_steps: .*{expected}"):
        voted(steps)
