"""Tasks that are solved by programs: what the policy's programs and the reward model's tests are worth.

`program_credit` and `unit_test_credit` stand where `credit.policy_credit` and `credit.vote_credit` stand for tasks that
are judged by votes. Hidden tests alone reward the policy, and programs alone reward the tests that the reward model wrote.

Sources: arXiv 2602.02488, section 3.2.7, Algorithm 2, appendix C.2; the released code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import (
    NO_OUTCOME,
    NOT_TRAINED,
    Played,
    PolicyCredit,
    accuracy,
    policy_credit,
    trained,
    vote_advantages,
)
from triforge.algorithms.filters import reward_filter
from triforge.errors import InputError

NO_GOOD_PROGRAM = "no good program"

Accepts = Sequence[Sequence[bool] | None]


@dataclass(frozen=True, slots=True)
class UnitTestCredit:
    """Credit of every generated test of one task. `rewards` is None where nothing can be said."""

    rewards: tuple[float | None, ...]
    advantages: tuple[float, ...]
    reasons: tuple[str | None, ...]


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


def program_credit(
    outcomes: Sequence[int | None],
    shares: Sequence[float | None],
    lengths: Sequence[int],
    *,
    algorithm: Algorithm,
    played: Played | None = None,
) -> PolicyCredit:
    """Rewards and advantages of the K programs of one task: z-scores of the share of hidden tests that each passed.

    Whole trajectories are compared. Shares span half of what outcomes of -1 and +1 do, so `std_floor` is halved with them.

    Args:
        outcomes: one a trajectory: +1 passed all hidden tests, -1 did not, None could not be measured.
        shares: of the hidden tests that it passed, in [0, 1]; None exactly where the outcome is.
        algorithm: the arithmetic; what it says of votes, outcomes, estimator and lone steps is not read.
    """
    if len(shares) != len(outcomes) or len(lengths) != len(outcomes):
        raise InputError(
            f"shares and lengths: given {len(shares)} and {len(lengths)}, expected {len(outcomes)}, one an outcome"
        )
    for outcome, share in zip(outcomes, shares, strict=True):
        if (outcome is None) != (share is None) or (share is not None and not 0.0 <= share <= 1.0):
            raise InputError(
                f"shares: given {share} with outcome {outcome}, expected a number in [0, 1] where measured, else None"
            )
    rule = algorithm.changed(
        use_outcome=True,
        use_votes=False,
        vote_weight="constant",
        estimator="group",
        outcome="binary",
        std_floor=algorithm.std_floor / (2 if algorithm.outcome == "signed" else 1),
    )
    unjudged: list[list[Sequence[int]]] = [[()] * length for length in lengths]
    return policy_credit(outcomes, unjudged, algorithm=rule, played=played, scores=shares)


def unit_test_credit(
    outcomes: Sequence[int | None], accepts: Accepts, *, algorithm: Algorithm
) -> UnitTestCredit:
    """Rewards and advantages of the tests that were written for one task; compared with each other.

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
    found = generated_test_rewards(good, accepts)
    rewards: list[float | None] = [None] * len(accepts) if found is None else [*found]
    rule = algorithm.changed(vote_scope="task", drop_unanimous=False)
    blocked = reward_filter(successes, measured, algorithm)
    credit = trained(
        [rewards],
        vote_advantages([parsed], [rewards], rule),
        blocked if algorithm.train_reward_model else NOT_TRAINED,
        [NO_GOOD_PROGRAM if measured else NO_OUTCOME],
    )
    return UnitTestCredit(tuple(rewards), credit.advantages[0], credit.reasons[0])


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
    """The counts of several tasks together."""
    given = list(counts)
    return UnitTestCounts(
        **{name: sum(getattr(c, name) for c in given) for name in UnitTestCounts.__slots__}
    )
