"""What a step says about policy, reward model and tasks, as flat numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from services.trainer.samples import vote_values
from services.trainer.unit_test_rows import accepted
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import accuracy
from triforge.algorithms.theory import Estimate, GroupVotes, Theory, count_votes, estimate
from triforge.algorithms.unit_tests import count_unit_tests, total
from triforge.types import CriticNote, JudgedGroup, JudgedStep, Step, Trajectory, Vote

_JUDGE_TEXT = 600  # characters of a vote that the critic may read
_JUDGED_STEPS = 12  # steps of a trajectory with such texts
_TRAINED = ("train", "measure_parent")
_ESTIMATES = ("p_plus", "p_minus", "mu", "mu_within", "precision", "f_plus", "f_minus", "f_ratio")


def step_measures(
    groups: Sequence[JudgedGroup], *, alpha_low: float, alpha_high: float
) -> dict[str, float]:
    """Measures of the training groups of one step. Rates are in [0, 1]; what cannot be measured is left out."""
    training = [g for g in groups if g.played.group.purpose in _TRAINED]
    trajectories = [t for g in training for t in g.played.trajectories]
    measures = {
        "groups": float(len(groups)),
        "trajectories": float(len(trajectories)),
        "infrastructure_failures": float(sum(not t.measured for t in trajectories)),
        "retries": float(sum(t.retries for t in trajectories)),
    }
    counts = [accuracy([t.outcome.value for t in g.played.trajectories]) for g in training]
    rates = [s / m for s, m in counts if m]
    measures |= _mean("success", [float(t.outcome.value == 1) for t in trajectories if t.measured])
    measures |= _mean("in_band", [float(alpha_low <= r <= alpha_high) for r in rates])
    measures |= _mean("all_same", [float(r in (0.0, 1.0)) for r in rates])
    measures |= _mean("length", [float(len(t.steps)) for t in trajectories if t.measured])
    steps = [s for t in trajectories for s in t.steps]
    measures |= _mean("valid_actions", [float(s.action_valid) for s in steps])
    measures |= _mean("truncated", [float(s.finish == "length") for s in steps])
    return measures | judge_measures(training) | unit_test_measures(training)


def judge_measures(groups: Iterable[JudgedGroup]) -> dict[str, float]:
    """How good the votes were.

    `judge/balanced` is the mean of the hit rates on the steps that the environment calls good and bad, over valid
    votes; `judge/constant` is the raw accuracy of the better constant answer beside `judge/accuracy`. `judge/outcome`
    is the agreement with the trajectory's outcome.
    """
    votes = list(_votes(groups))
    if not votes:
        return {}
    valid = [(step, outcome, value) for step, outcome, value in votes if value != 0]
    labelled = [(step.label, value) for step, _, value in valid if step.label is not None]
    measures = {"judge/votes": float(len(votes)), "judge/invalid": 1.0 - len(valid) / len(votes)}
    measures |= _mean("judge/outcome", [float(v == o) for _, o, v in valid if o is not None])
    measures |= _mean("judge/positive", [float(v == 1) for _, _, v in valid])
    measures |= _mean("judge/accuracy", [float(v == label) for label, v in labelled])
    good = [float(v == 1) for label, v in labelled if label == 1]
    bad = [float(v == -1) for label, v in labelled if label == -1]
    if good and bad:
        measures["judge/balanced"] = (sum(good) / len(good) + sum(bad) / len(bad)) / 2
        measures["judge/constant"] = max(len(good), len(bad)) / len(labelled)
    return measures


def unit_test_measures(groups: Iterable[JudgedGroup]) -> dict[str, float]:
    """How good programs and generated tests were, over the groups for which tests are written.

    `unit_tests/code`, `/ut` and `/detect` are the published shares (`triforge.algorithms.unit_tests`); `/written` counts
    tests, `/invalid` is the share that could not be read, `/failed` counts groups whose tests were not written or not run;
    `/hidden` is the mean share of hidden tests that a program passes.
    """
    asked = [g for g in groups if g.played.group.reward.kind == "unit_tests"]
    if not asked:
        return {}
    counts = total(
        count_unit_tests([t.outcome.value for t in g.played.trajectories], accepted(g))
        for g in asked
    )
    rows = [row for g in asked for row in accepted(g)]
    shares = [t.outcome.passed for g in asked for t in g.played.trajectories]
    measures = {f"unit_tests/{name}": value for name, value in counts.measures().items()}
    measures["unit_tests/written"] = float(len(rows))
    measures["unit_tests/failed"] = float(
        sum(g.tests is not None and g.tests.error is not None for g in asked)
    )
    measures |= _mean("unit_tests/invalid", [float(row is None) for row in rows])
    return measures | _mean("unit_tests/hidden", [share for share in shares if share is not None])


def vote_counts(groups: Iterable[JudgedGroup], *, lam: float) -> list[GroupVotes]:
    """What each training group says about the votes."""
    return [
        count_votes(
            [t.outcome.value for t in g.played.trajectories],
            [vote_values(t, v) for t, v in zip(g.played.trajectories, g.votes, strict=True)],
            lam=lam,
        )
        for g in groups
        if g.played.group.purpose in _TRAINED
    ]


def theory_measures(counts: Sequence[GroupVotes], *, algorithm: Algorithm) -> dict[str, float]:
    """Theorems 1 and 2 as measured on one step's groups: `theory/<name>` with its 95 % interval at `/low` and `/high`.

    The same for the tasks below (`hard`), in (`band`) and above (`easy`) the preset's alphas, as `theory/<bin>/<name>`.
    """
    judged = [g for g in counts if g.successes + g.failures]
    measures = estimates("theory", estimate(judged)) if judged else {}
    bins: dict[str, list[GroupVotes]] = {"hard": [], "band": [], "easy": []}
    for g in judged:
        above = g.accuracy > algorithm.alpha_high
        bins["hard" if g.accuracy < algorithm.alpha_low else "easy" if above else "band"].append(g)
    for name, part in bins.items():
        measures |= estimates(f"theory/{name}", estimate(part)) if part else {}
    return measures


def estimates(prefix: str, theory: Theory) -> dict[str, float]:
    """Flat numbers; what is not known or not finite is left out."""
    found = {f"{prefix}/groups": float(theory.groups)}
    if theory.one_sided is not None:
        found[f"{prefix}/one_sided"] = theory.one_sided
    for name in _ESTIMATES:
        value: Estimate | None = getattr(theory, name)
        if value is not None:
            found[f"{prefix}/{name}"] = value.value
            found[f"{prefix}/{name}/low"] = value.low
            found[f"{prefix}/{name}/high"] = value.high
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _votes(groups: Iterable[JudgedGroup]) -> Iterator[tuple[Step, int | None, int]]:
    for group in groups:
        for trajectory, given in zip(group.played.trajectories, group.votes, strict=True):
            for step in () if given is None else given.steps:
                for vote in step.votes:
                    yield trajectory.steps[step.step], trajectory.outcome.value, vote.value


def success_rate(groups: Iterable[JudgedGroup]) -> tuple[int, int]:
    """(successes, measured) over all trajectories of the groups."""
    return accuracy([t.outcome.value for g in groups for t in g.played.trajectories])


def critic_notes(group: JudgedGroup, *, succeeded: bool, count: int) -> tuple[CriticNote, ...]:
    """What the critic may read: failures as they come, or the shortest successes."""
    pairs = [
        (t, v)
        for t, v in zip(group.played.trajectories, group.votes, strict=True)
        if t.measured and (t.outcome.value == 1) == succeeded
    ]
    if succeeded:
        pairs.sort(key=lambda pair: len(pair[0].steps))
    notes = []
    for trajectory, given in pairs[:count]:
        by_step = {} if given is None else {v.step: v.votes for v in given.steps}
        steps = tuple(
            (s.action, s.next_observation, tuple(vote.value for vote in by_step.get(s.index, ())))
            for s in trajectory.steps
        )
        notes.append(
            CriticNote(
                trajectory_id=trajectory.id,
                success=succeeded,
                steps=steps,
                judged=_judged(trajectory, by_step),
                hidden=trajectory.outcome.share,
                written=_written(group, trajectory),
            )
        )
    return tuple(notes)


def _judged(trajectory: Trajectory, by_step: dict[int, tuple[Vote, ...]]) -> tuple[JudgedStep, ...]:
    """All texts of the steps with a negative vote, clipped: a job is no place for long ones."""
    found = []
    for step in trajectory.steps:
        votes = by_step.get(step.index, ())
        if any(vote.value == -1 for vote in votes):
            texts = tuple(vote.text[:_JUDGE_TEXT] for vote in votes)
            found.append(JudgedStep(step=step.index, texts=texts))
    return tuple(found[:_JUDGED_STEPS])


def _written(group: JudgedGroup, trajectory: Trajectory) -> tuple[int, int] | None:
    """How many of the tests that could be read a program passes; None where it was not run on any."""
    programs = group.tests.programs if group.tests else ()
    rows = [row for row in accepted(group) if row is not None]
    if not rows or trajectory.id not in programs:
        return None
    return sum(row[programs.index(trajectory.id)] for row in rows), len(rows)


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
