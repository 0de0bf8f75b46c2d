"""Rollouts of one task from ragged lists `[trajectory][step]`, and their credit as such lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from methods.cure.arithmetic import credit_tests
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import credit_steps, credit_votes
from triforge.algorithms.samples import JudgedStep, Rollout, Sample

Rows = Sequence[Sequence[Any]]


class Credit(NamedTuple):
    """Rewards, advantages and reasons as tuples of the shape of the samples; a reason is None where there is none."""

    rewards: tuple[Any, ...]
    advantages: tuple[Any, ...]
    reasons: tuple[Any, ...]
    successes: int = 0
    measured: int = 0
    spread: float = 0.0


def rollouts(
    outcomes: Sequence[int | None],
    votes: Rows,
    *,
    scores: Sequence[float | None] | None = None,
    endings: Sequence[float] | None = None,
    **of_steps: Rows,
) -> list[Rollout]:
    """Return rollouts with `votes[trajectory][step][vote]`; `of_steps` are further fields of steps by name."""
    return [
        Rollout(
            outcome=outcome,
            score=scores[t] if scores else None if outcome is None else (outcome + 1) / 2,
            penalty=endings[t] if endings else 0.0,
            steps=[
                JudgedStep(
                    response=Sample(),
                    votes=[Sample(kind="vote", role="reward", value=value) for value in values],
                    **{name: rows[t][i] for name, rows in of_steps.items()},
                )
                for i, values in enumerate(row)
            ],
        )
        for t, (outcome, row) in enumerate(zip(outcomes, votes, strict=True))
    ]


def step_credit(
    outcomes: Sequence[int | None],
    votes: Rows,
    *,
    algorithm: Algorithm,
    trust: float = 0.0,
    **given: Any,
) -> Credit:
    """Return the credit of the responses; `given` as of `rollouts`."""
    made = rollouts(outcomes, votes, **given)
    tally = credit_steps(made, algorithm, trust=trust)
    rows = [[step.response for step in rollout.steps] for rollout in made]
    return Credit(*map(tuple, zip(*map(_of, rows), strict=True)), **_fields(tally))


def vote_credit(
    outcomes: Sequence[int | None], votes: Rows, *, algorithm: Algorithm, **given: Any
) -> Credit:
    """Return the credit of the votes, `[trajectory][step][vote]`; `given` as of `rollouts`."""
    made = rollouts(outcomes, votes, **given)
    credit_votes(made, algorithm)
    rows = [
        tuple(zip(*(_of(step.votes) for step in rollout.steps), strict=True)) or ((), (), ())
        for rollout in made
    ]
    return Credit(*map(tuple, zip(*rows, strict=True)))


def unit_credit(
    outcomes: Sequence[int | None], accepts: Sequence[Any], *, algorithm: Algorithm
) -> Credit:
    """Return the credit of generated tests."""
    tests = [Sample(kind="test", role="reward") for _ in accepts]
    credit_tests(tests, outcomes, accepts, algorithm=algorithm)
    return Credit(*_of(tests))


def _of(samples: Sequence[Sample]) -> tuple[tuple[Any, ...], ...]:
    return (
        tuple(sample.reward for sample in samples),
        tuple(sample.advantage for sample in samples),
        tuple(sample.reason or None for sample in samples),
    )


def _fields(tally: Any) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in ("successes", "measured", "spread")}
