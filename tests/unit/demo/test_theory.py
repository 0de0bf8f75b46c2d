"""The report's section on what the votes were worth."""

from __future__ import annotations

from demo.theory import answers, lines
from triforge.types import RunStep


def step(number: int, **metrics: float) -> RunStep:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return RunStep(
        run_id="run-1", step=number, at=0.0, policy_version=1, reward_version=1, metrics=named
    )


def judged(number: int, mu: float, half: float, *, ratio: float, one_sided: float) -> RunStep:
    names = {f"{prefix}__mu_within": mu for prefix in ("theory", "votes__recent")}
    names |= {f"{prefix}__low": value - half for prefix, value in names.items()} | {
        f"{prefix}__high": value + half for prefix, value in names.items()
    }
    return step(
        number, theory__groups=4.0, theory__f_ratio=ratio, theory__one_sided=one_sided, **names
    )


def test_the_first_question_is_answered_by_the_interval() -> None:
    for mu, half, word in (
        (1.3, 0.1, "Yes:"),
        (1.3, 0.4, "Not shown:"),
        (0.7, 0.1, "No, it lies below:"),
    ):
        first, *_ = answers([judged(1, mu, half, ratio=1.0, one_sided=0.0)])
        assert word in first
        assert f"{mu:.3f} [{mu - half:.2f}, {mu + half:.2f}]" in first
    unknown, *_ = answers([step(1, theory__groups=4.0, theory__one_sided=1.0)])
    assert "Not known" in unknown


def test_the_second_question_names_the_range_and_the_tasks_with_one_outcome() -> None:
    steps = [judged(n, 1.2, 0.1, ratio=0.5 * n, one_sided=1 / n) for n in (1, 2, 4)]
    _, second = answers([*steps, step(5, theory__groups=2.0, theory__one_sided=1.0)])
    assert "between 0.50 and 2.00" in second
    assert "(1 steps had votes on one side only)" in second


def test_a_run_without_votes_has_no_section() -> None:
    plain = [step(0, eval__sampled=0.5), step(1, success=0.5)]
    assert (lines(plain), answers(plain)) == ([], [])
