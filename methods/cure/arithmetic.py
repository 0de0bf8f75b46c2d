"""Credit of tasks that are solved by programs: hidden tests reward the policy, programs reward the reward model's tests.

Sources: arXiv 2602.02488, section 3.2.7, Algorithm 2, appendix C.2; the released code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import NO_OUTCOME, NOT_TRAINED, accuracy, vote_advantages
from triforge.algorithms.filters import reward_filter
from triforge.algorithms.samples import Sample
from triforge.errors import InputError

NO_GOOD_PROGRAM = "no good program"

Accepts = Sequence[Sequence[bool] | None]


@dataclass(frozen=True, slots=True)
class UnitTestCounts:
    """How good the programs and tests of some tasks were. Counts add up; the shares are the published metrics.

    Attributes:
        programs, good_programs: all that were measured, and those that pass all hidden tests.
        tests, good_tests: tests of tasks with a good program, and those that accept every good program.
        sharp_of, sharp: tests of tasks with programs of both kinds, and the good ones that reject every bad program.
    """

    programs: int = 0
    good_programs: int = 0
    tests: int = 0
    good_tests: int = 0
    sharp_of: int = 0
    sharp: int = 0

    def measures(self) -> dict[str, float]:
        """`code`, `ut` and `detect` as shares in [0, 1]; what cannot be measured is left out."""
        parts = (
            ("code", self.good_programs, self.programs),
            ("ut", self.good_tests, self.tests),
            ("detect", self.sharp, self.sharp_of),
        )
        return {name: count / of for name, count, of in parts if of}


def program_rules(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm by which programs are credited with the share of hidden tests that each passed.

    Whole trajectories are compared; votes take no part. Shares span half of what outcomes of -1 and +1 do, so `std_floor` is
    halved with them.
    """
    return algorithm.changed(
        use_outcome=True,
        use_votes=False,
        vote_weight="constant",
        estimator="group",
        outcome="binary",
        std_floor=algorithm.std_floor / (2 if algorithm.outcome == "signed" else 1),
    )


def credit_tests(
    tests: Sequence[Sample],
    outcomes: Sequence[int | None],
    accepts: Accepts,
    *,
    algorithm: Algorithm,
) -> None:
    """Annotate the tests that were written for one task; they are compared with each other.

    With `invalid_votes = "apart"` an unparsable test stays out of mean and deviation and lies `invalid_vote_margin` below
    the worst other test and below 0; with `"pooled"` it counts as one that every program fails, as published.

    Args:
        outcomes: one a program: +1 passed all hidden tests, -1 did not, None could not be measured.
        accepts: `accepts[u][j]` says whether test u accepts the j-th of the *measured* programs; None if the test could
            not be parsed.
        algorithm: reads the options of votes, `reward_band` and `train_reward_model`.
    """
    successes, measured = accuracy(outcomes)
    good = [outcome == 1 for outcome in outcomes if outcome is not None]
    parsed = [0 if row is None else 1 for row in accepts]
    earned = generated_test_rewards(good, accepts)
    rewards: list[float | None] = [None] * len(accepts) if earned is None else [*earned]
    rule = algorithm.changed(vote_scope="task", drop_unanimous=False)
    blocked = reward_filter(successes, measured, algorithm)
    if not algorithm.train_reward_model:
        blocked = NOT_TRAINED
    unmeasured = NO_GOOD_PROGRAM if measured else NO_OUTCOME
    scored = vote_advantages([parsed], [rewards], rule)
    rows = zip(tests, rewards, scored.advantages[0], scored.reasons[0], strict=True)
    for test, reward, advantage, why in rows:
        test.credit(reward, advantage, unmeasured if reward is None else blocked or why)


def generated_test_rewards(good_programs: Sequence[bool], accepts: Accepts) -> list[float] | None:
    """One reward for each test that the reward model wrote for a coding task, or None if no program is good.

    A program is good when it passes all dataset tests; a test is good when it accepts every good program. A good test
    earns 1 for each bad program it rejects; any other loses 1 for each bad program it accepts. Without bad programs a
    good test earns +1, any other -1. An unparsable test accepts nothing (the released rule; docs/methods.md says what
    follows from it).
    """
    if not any(good_programs):
        return None
    rewards = []
    for row in accepts:
        verdicts = [False] * len(good_programs) if row is None else row
        if len(verdicts) != len(good_programs):
            raise InputError(
                f"accepts: given a row of {len(verdicts)} verdicts, expected {len(good_programs)}, one a program"
            )
        pairs = list(zip(verdicts, good_programs, strict=True))
        good_test = all(accepted for accepted, good in pairs if good)
        on_bad = [accepted for accepted, good in pairs if not good]
        if not on_bad:
            rewards.append(1.0 if good_test else -1.0)
        elif good_test:
            rewards.append(float(on_bad.count(False)))
        else:
            rewards.append(-float(on_bad.count(True)))
    return rewards


def count_unit_tests(outcomes: Sequence[int | None], accepts: Accepts) -> UnitTestCounts:
    """Count one task; arguments as for `unit_test_credit`. An unparsable test accepts nothing."""
    good = [outcome == 1 for outcome in outcomes if outcome is not None]
    solved, both = any(good), any(good) and not all(good)
    parsed = [list(row) for row in accepts if row is not None]
    right = [
        row for row in parsed if all(ok for ok, is_good in zip(row, good, strict=True) if is_good)
    ]
    return UnitTestCounts(
        programs=len(good),
        good_programs=sum(good),
        tests=len(accepts) if solved else 0,
        good_tests=len(right) if solved else 0,
        sharp_of=len(accepts) if both else 0,
        sharp=right.count(good) if both else 0,
    )


def total(counts: Iterable[UnitTestCounts]) -> UnitTestCounts:
    """Return the counts of several tasks together."""
    given = list(counts)
    return UnitTestCounts(
        **{name: sum(getattr(c, name) for c in given) for name in UnitTestCounts.__slots__}
    )
