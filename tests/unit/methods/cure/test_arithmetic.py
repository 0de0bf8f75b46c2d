"""Programs and generated tests of a coding task, with the published numbers."""

import pytest

from methods.cure.arithmetic import (
    NO_GOOD_PROGRAM,
    count_unit_tests,
    program_rules,
    total,
)
from tests.rollouts import step_credit, unit_credit
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import NOT_TRAINED
from triforge.algorithms.filters import OUTSIDE_REWARD_BAND
from triforge.algorithms.presets import preset_names
from triforge.errors import InputError

PAPER, DEFAULT = resolve("rlanything_paper"), resolve("rlanything")

# programs g1, g2 are good, b1, b2 are not; one row a test
OUTCOMES = [1, 1, -1, -1]
PUBLISHED = ["1100", "1101", "1111", "1011", None, "1000"]
REWARDS = (2, 1, 0, -2, 0, 0)
Z = (1.511, 0.687, -0.137, -1.786, -0.137, -0.137)


def program_credit(outcomes, shares, lengths, *, algorithm, **given):
    votes = [[()] * length for length in lengths]
    return step_credit(outcomes, votes, algorithm=program_rules(algorithm), scores=shares, **given)


def rows(patterns):
    return [None if p is None else [c == "1" for c in p] for p in patterns]


@pytest.mark.parametrize("unparsable", [None, "0000"])
def test_the_published_vector_of_generated_tests_comes_out_whole(unparsable):
    given = [unparsable if p is None else p for p in PUBLISHED]
    credit = unit_credit(OUTCOMES, rows(given), algorithm=PAPER)
    assert credit.rewards == REWARDS
    assert credit.advantages == pytest.approx(Z, abs=1e-3)
    assert credit.reasons == (None,) * 6


def test_by_default_an_unparsable_test_is_worse_than_every_other_and_moves_none_of_them():
    credit = unit_credit(OUTCOMES, rows(PUBLISHED), algorithm=DEFAULT)
    without = unit_credit(
        OUTCOMES, rows([p for p in PUBLISHED if p is not None]), algorithm=DEFAULT
    )
    others = [a for a, p in zip(credit.advantages, PUBLISHED, strict=True) if p is not None]
    assert others == list(without.advantages)
    assert credit.advantages[4] == min(others) - 1.0


def test_a_model_that_only_writes_nonsense_is_penalised_by_default_and_not_in_the_paper():
    nonsense = [None, None, None]
    assert unit_credit(OUTCOMES, nonsense, algorithm=DEFAULT).advantages == (-1.0,) * 3
    paper = unit_credit(OUTCOMES, nonsense, algorithm=PAPER)
    assert paper.advantages == (0.0,) * 3
    assert paper.reasons == ("zero spread",) * 3


def test_by_default_a_test_that_earned_nothing_is_never_reinforced():
    given = rows(["1011", "1011", "0011", "1111"])  # the last detects nothing, the others mislead
    assert unit_credit(OUTCOMES, given, algorithm=PAPER).advantages[3] > 0.0
    credit = unit_credit(OUTCOMES, given, algorithm=DEFAULT)
    assert (credit.advantages[3], credit.reasons[3]) == (0.0, "vote without reward")


def test_without_bad_programs_a_test_is_right_or_wrong_where_the_band_lets_it_train():
    everyone = resolve("rlanything_paper", {"reward_band": "none"})
    credit = unit_credit([1, 1], rows(["11", "10", None]), algorithm=everyone)
    assert credit.rewards == (1, -1, -1)
    banded = unit_credit([1, 1], rows(["11", "10"]), algorithm=PAPER)
    assert banded.reasons == (OUTSIDE_REWARD_BAND,) * 2


def test_a_task_without_a_good_program_is_skipped_whatever_was_written():
    for preset in (PAPER, DEFAULT):
        credit = unit_credit([-1, -1, None], rows(["10", None]), algorithm=preset)
        assert credit.rewards == (None, None)
        assert credit.advantages == (0.0, 0.0)
        assert credit.reasons == (NO_GOOD_PROGRAM,) * 2


def test_programs_that_were_not_measured_have_no_column():
    with_hole = unit_credit([1, None, -1], rows(["10", "11"]), algorithm=PAPER)
    assert with_hole.rewards == unit_credit([1, -1], rows(["10", "11"]), algorithm=PAPER).rewards
    with pytest.raises(InputError, match="expected 2"):
        unit_credit([1, None, -1], rows(["101"]), algorithm=PAPER)


def test_tests_do_not_train_a_reward_model_that_is_not_trained():
    frozen = resolve("rlanything", {"train_reward_model": False})
    credit = unit_credit(OUTCOMES, rows(PUBLISHED), algorithm=frozen)
    assert set(credit.reasons) == {NOT_TRAINED}


def test_a_program_earns_the_share_of_hidden_tests_and_is_compared_with_the_others():
    shares = [1.0, 0.5, 0.0, None]
    credit = program_credit([1, -1, -1, None], shares, [1, 1, 1, 0], algorithm=PAPER)
    assert credit.rewards == ((1.0,), (0.5,), (0.0,), ())
    flat = [row[0] for row in credit.advantages[:3]]
    assert flat == pytest.approx([1.2247, 0.0, -1.2247], abs=1e-4)
    assert (credit.successes, credit.measured) == (1, 3)


def test_partial_credit_tells_failures_apart_and_equal_programs_say_nothing():
    credit = program_credit([-1, -1], [0.75, 0.25], [1, 1], algorithm=PAPER)
    assert [row[0] for row in credit.advantages] == [1.0, -1.0]
    same = program_credit([-1, -1], [0.5, 0.5], [1, 1], algorithm=PAPER)
    assert same.reasons == (("zero spread",), ("zero spread",))


def test_the_floor_of_the_deviation_is_as_wide_for_shares_as_for_outcomes():
    """One solved of eight: the same advantages as from outcomes of -1 and +1."""
    outcomes, shares = [1, *[-1] * 7], [1.0, *[0.0] * 7]
    low = program_credit(
        outcomes, shares, [1] * 8, algorithm=resolve("rlanything", {"std_floor": 2.0})
    )
    assert low.advantages[0][0] == pytest.approx(0.875)
    assert program_credit(outcomes, shares, [1] * 8, algorithm=DEFAULT).advantages[0][
        0
    ] == pytest.approx(7**0.5)


def test_all_programs_of_a_trajectory_with_several_turns_share_its_reward_and_shaping_counts():
    penalties = [[-0.25, 0.0], [0.0]]
    credit = program_credit([1, -1], [1.0, 0.0], [2, 1], algorithm=PAPER, penalty=penalties)
    assert credit.rewards == ((0.75, 0.75), (0.0,))
    assert credit.advantages == ((1.0, 1.0), (-1.0,))


@pytest.mark.parametrize("name", sorted(n for n in preset_names() if not resolve(n).needs_critic))
def test_every_preset_without_a_critic_can_credit_programs(name):
    credit = program_credit([1, -1], [1.0, 0.5], [1, 1], algorithm=resolve(name))
    assert credit.rewards == ((1.0,), (0.5,))


def test_code_ut_and_detect_are_the_published_shares():
    mixed = count_unit_tests(OUTCOMES, rows(PUBLISHED))
    # right: 1100, 1101, 1111; of these only 1100 rejects every bad program
    assert mixed.measures() == {"code": 0.5, "ut": 0.5, "detect": pytest.approx(1 / 6)}
    solved = count_unit_tests([1, 1], rows(["11", "01"]))
    assert solved.measures() == {"code": 1.0, "ut": 0.5}  # nothing to detect
    unsolved = count_unit_tests([-1, -1, None], rows(["00", "11"]))
    assert unsolved.measures() == {"code": 0.0}
    together = total([mixed, solved, unsolved]).measures()
    assert together == {"code": 0.5, "ut": 0.5, "detect": pytest.approx(1 / 6)}
    assert total([]).measures() == {}
