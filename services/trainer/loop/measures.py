"""Measures of a step by flat names: of its groups, votes, tests, samples and learners."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any, Final

from services.trainer.credit.judged_groups import vote_values
from services.trainer.credit.samples import TRAINED, Samples
from services.trainer.loop.gauges import PROGRESS
from services.trainer.loop.learners import Trained
from triforge.algorithms.alarms import ENTROPY
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import accuracy, vote_weight
from triforge.algorithms.filters import alike
from triforge.algorithms.gaming import drift, halves
from triforge.algorithms.off_policy import staleness_measures
from triforge.algorithms.theory import (
    Estimate,
    GroupVotes,
    Theory,
    count_votes,
    estimate,
    in_order,
    share_interval,
    trust,
    wilson,
)
from triforge.telemetry import tracing
from triforge.types import JudgedGroup, Step, TrainedRole

_REWARDS: Final = (-1.0, -0.5, 0.0, 0.5, 1.0)  # bounds of the histogram
# purposes of task versions in the pool; candidates are not in it yet
_OF_POOL: Final = ("train", "measure_parent")
_FAILURES: Final = 5  # kinds of failures that are counted by name
_ESTIMATES: Final = (
    "p_plus", "p_minus", "mu", "mu_within", "precision", "f_plus", "f_minus", "f_ratio"
)  # fmt: skip


@contextmanager
def phase(name: str, measures: dict[str, float]) -> Iterator[None]:
    """Run a part of a step: its seconds become the measure `seconds/<name>`, and a span of the trace."""
    with tracing.span(name):
        started = time.monotonic()
        try:
            yield
        finally:
            measures[f"seconds/{name}"] = time.monotonic() - started
            PROGRESS.set_to_current_time()


def step_measures(
    groups: Sequence[JudgedGroup], *, alpha_low: float, alpha_high: float
) -> dict[str, float]:
    """Return the measures of the groups of one step that play the pool's tasks, not candidates. Rates are in [0, 1].

    The rates of curves have their 95 % intervals over groups at `/low` and `/high`.
    """
    training = [g for g in groups if g.played.group.purpose in _OF_POOL]
    trajectories = [t for g in training for t in g.played.trajectories]
    measured = [t for t in trajectories if t.measured]
    counts = [(s, m) for s, m in (success_rate([g]) for g in training) if m]
    rates = [s / m for s, m in counts]
    inside = [alpha_low <= rate <= alpha_high for rate in rates]
    found = [[t.score for t in g.played.trajectories if t.score is not None] for g in training]
    same = [alike(row) for row in found if row]
    steps = [s for t in trajectories for s in t.steps]
    measures = {
        "groups": float(len(groups)),
        "trajectories": float(len(trajectories)),
        "infrastructure_failures": float(len(trajectories) - len(measured)),
        "retries": float(sum(t.retries for t in trajectories)),
        "tokens": float(sum(s.end - s.start for s in steps)),  # sampled
    } | _means(
        {
            "success": [t.outcome.value == 1 for t in measured if t.outcome.value is not None],
            "score": scores(training),
            "in_band": inside,
            "all_same": same,
            "length": [len(t.steps) for t in measured],
            "valid_actions": [s.action_valid for s in steps],
            "truncated": [s.finish == "length" for s in steps],
        }
    )
    own: dict[str, list[float]] = {}
    for name, value in (one for t in measured for one in t.outcome.metrics.items()):
        own.setdefault(f"metric/{name}", []).append(value)
    measures |= _means(own)
    if counts:
        measures |= ends("success", share_interval(counts))
        measures |= ends("in_band", wilson(sum(inside), len(inside)))
    if same:
        measures |= ends("all_same", wilson(sum(same), len(same)))
    return measures | failures("failures", training) | judge_measures(training)


def failures(name: str, groups: Iterable[JudgedGroup]) -> dict[str, float]:
    """Count the episodes that were not measured by what raised, `NAME/KeyError at FILE:LINE`, else by the kind of the error."""
    errors = (t.outcome.error for g in groups for t in g.played.trajectories if not t.measured)
    counts = Counter(error.raised or error.kind for error in errors if error)
    return {f"{name}/{why}": float(n) for why, n in counts.most_common(_FAILURES)}


def ends(name: str, interval: tuple[float, float]) -> dict[str, float]:
    """Return the two ends of the 95 % interval of a measure, as measures."""
    return {f"{name}/low": interval[0], f"{name}/high": interval[1]}


def judge_measures(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return the quality of the votes.

    `judge/balanced` is the mean of the hit rates on the steps that the environment calls good and bad, over valid
    votes; `judge/constant` is the raw accuracy of the better constant answer, for comparison with `judge/accuracy`. `judge/outcome`
    is the agreement with the trajectory's outcome. `judge/within_label` and `judge/within_outcome` compare the steps of a
    group that have the same index: the share of pairs of different labels, or outcomes, whose better step has the higher
    mean vote (ties half). `judge/unmeasured` is 1 where no step is labelled. `judge/entropy` is that of all valid votes in bits, `judge/unanimous` the share of steps with at
    least two votes whose votes all agree.
    """
    votes = list(_votes(groups))
    if not votes:
        return {}
    valid = [(step, outcome, value) for step, outcome, value in votes if value != 0]
    labelled = _labelled(votes)
    measures = {"votes": float(len(votes)), "invalid": 1.0 - len(valid) / len(votes)} | _means(
        {
            "outcome": [value == outcome for _, outcome, value in valid if outcome is not None],
            "positive": [value == 1 for _, _, value in valid],
            "accuracy": [value == label for label, value in labelled],
        }
    )
    if all(step.label is None for step, _, _ in votes):
        measures["unmeasured"] = 1.0
    rows = [_hits(_labelled(_votes([g]))) for g in groups]
    right_good, good, right_bad, bad = (sum(column) for column in zip(*rows, strict=True))
    if good and bad:
        measures["balanced"] = (right_good / good + right_bad / bad) / 2
        measures["constant"] = max(good, bad) / len(labelled)
        measures |= ends("balanced", share_interval(rows))
    if labelled:
        pooled = [(a + c, b + d) for a, b, c, d in rows]
        measures |= ends("accuracy", share_interval(pooled))
    measures |= _compared(groups)
    if valid:
        p = measures["positive"]
        measures["entropy"] = -sum(q * math.log2(q) for q in (p, 1.0 - p) if q > 0.0)
    return {f"judge/{name}": value for name, value in measures.items()}


def _compared(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return the measures that compare steps of one index of a group, and the votes on one step."""
    found: dict[str, list[tuple[float, int]]] = {"within_label": [], "within_outcome": []}
    alone: list[bool] = []
    for group in groups:
        places: dict[tuple[str, int], list[tuple[float, int]]] = {}
        for step, outcome, given in _judged_steps(group):
            alone += [len(set(given)) == 1] if len(given) > 1 else []
            for name, side in (("within_label", step.label), ("within_outcome", outcome)):
                if side is not None:
                    place = places.setdefault((name, step.index), [])
                    place.append((sum(given) / len(given), side))
        for name, rows in found.items():
            compared = [in_order(steps) for (kind, _), steps in places.items() if kind == name]
            rows.append((math.fsum(w for w, _ in compared), sum(n for _, n in compared)))
    measures = _means({"unanimous": alone})
    for name, rows in found.items():
        if pairs := sum(n for _, n in rows):
            measures[name] = math.fsum(wins for wins, _ in rows) / pairs
            measures |= ends(name, share_interval(rows))
    return measures


def sample_measures(samples: Samples) -> dict[str, float]:
    """Return how much of a step is trained on, why the rest is not, and its age.

    `steps/<reason>` counts the policy's responses, `votes/<reason>` the reward model's votes and tests;
    `groups/effective` is the share of the groups played for the policy whose rewards differ (`effective prompts`);
    `votes/trained_share` is the share of those with an advantage (`Samples.eligible_votes`) that is trained on.
    """
    measures = {f"rows/{role}": float(len(rows)) for role, rows in samples.rows.items()}
    for name in ("partial", "voteless", "dead"):
        measures[f"groups/{name}"] = float(getattr(samples, name))
    if samples.asked:
        measures["groups/dead_share"] = samples.dead / samples.asked
        measures["groups/effective"] = samples.spread / samples.asked
        measures |= ends("groups/effective", wilson(samples.spread, samples.asked))
    if samples.deviation is not None:
        measures["collapse/spread"] = samples.deviation
    for role, ages in samples.ages.items():
        for name, value in staleness_measures(ages).items():
            measures[f"staleness/{role}/{name}"] = value
    measures |= reward_histogram(samples.records)
    cast, eligible = samples.vote_reasons, samples.eligible_votes
    if eligible:
        measures["votes/trained_share"] = cast[TRAINED] / eligible
    measures |= {f"votes/{reason}": float(n) for reason, n in cast.items()}
    return measures | {f"steps/{reason}": float(n) for reason, n in samples.reasons.items()}


def reward_histogram(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the shares of turns by reward, `rewards/below_-1` to `rewards/from_1`; each bin ends below its bound."""
    turns = (record for record in records if record["purpose"] in _OF_POOL)
    rewards = [turn["reward"] for turn in turns if turn["reward"] is not None]
    if not rewards:
        return {}
    counts = Counter(bisect_right(_REWARDS, reward) for reward in rewards)
    names = [*(f"below_{bound:g}" for bound in _REWARDS), f"from_{_REWARDS[-1]:g}"]
    return {f"rewards/{name}": counts[n] / len(rewards) for n, name in enumerate(names)}


def learner_measures(trained: Mapping[TrainedRole, Trained]) -> dict[str, float]:
    """Return the finite measures that the learners report, and their seconds."""
    measures: dict[str, float] = {}
    for role, out in trained.items():
        report = out.ready.metrics.items()
        measures |= {f"{role}/{name}": v for name, v in report if math.isfinite(v)}
        measures[f"seconds/train_{role}"] = out.seconds
        if out.origin is not None:
            measures[f"{role}/restarted"] = 1.0
    return measures


def entropy_share(notes: dict[str, Any], measures: Mapping[str, float]) -> dict[str, float]:
    """Return the policy's entropy as a share of that of the first step that trained it, which the notes keep."""
    now = measures.get("policy/entropy")
    if now is None or notes.setdefault("first_entropy", now) <= 0.0:
        return {}
    return {ENTROPY: now / notes["first_entropy"]}


def success_rate(groups: Iterable[JudgedGroup]) -> tuple[int, int]:
    """Return (successes, measured) over all trajectories."""
    return accuracy([t.outcome.value for g in groups for t in g.played.trajectories])


def scores(groups: Iterable[JudgedGroup]) -> list[float]:
    """Return the scores of all measured trajectories; none if the environment states only success."""
    trajectories = [t for g in groups for t in g.played.trajectories]
    given = any(t.outcome.score is not None for t in trajectories)
    return [t.score for t in trajectories if given and t.score is not None]


# ---- history of the votes ----


class VoteHistory:
    """Counts of the votes of the latest `trust_groups` groups, in the orchestrator's notes: a restart forgets nothing.

    The notes hold, under `votes`, one entry a step: its number and one row of counts a group. A step is credited with the trust
    of the steps before it; recording a step twice is the same as once. So a repeated step gets the same trust.
    """

    NOTE: Final = "votes"

    def __init__(self, notes: dict[str, Any], algorithm: Algorithm) -> None:
        self._notes, self._algorithm = notes, algorithm

    def before(self, step: int) -> list[GroupVotes]:
        """Return the latest groups of the steps before `step`."""
        rows = [row for number, rows in self._entries() if number < step for row in rows]
        return [GroupVotes(*row) for row in rows[-self._algorithm.trust_groups :]]

    def trust(self, step: int) -> float:
        """Return the trust in the votes of `step`, see `triforge.algorithms.theory.trust`.

        While the judge is being gamed it is that of the newer half of the groups, if that is less.
        """
        groups = self.before(step)
        moved = drift(groups)
        known = trust(groups)
        return min(known, trust(halves(groups)[1])) if moved and moved.alarm else known

    def remember(self, step: int, groups: Sequence[GroupVotes]) -> None:
        """Put the groups of a step into the notes; drop groups that `before(step)` does not read."""
        kept = [entry for entry in self._entries() if entry[0] < step]
        while kept and sum(len(rows) for _, rows in kept[1:]) >= self._algorithm.trust_groups:
            del kept[0]
        judged = [list(astuple(g)) for g in groups if g.successes + g.failures]
        self._notes[self.NOTE] = [*kept, [step, judged]]

    def measure(self, step: int, groups: Iterable[JudgedGroup]) -> dict[str, float]:
        """Remember the groups of a step; return measures of their votes and of the latest groups'."""
        counts, trusted = vote_counts(groups, lam=self._algorithm.reward_lam), self.trust(step)
        self.remember(step, counts)
        measures = theory_measures(counts)
        recent = self.before(step + 1)
        measures |= estimates("votes/recent", estimate(recent)) | alarm_measures(recent)
        measures["votes/trust"] = trusted
        if self._algorithm.vote_weight == "trust":
            measures["votes/weight"] = vote_weight(trusted, algorithm=self._algorithm)
        return measures

    def _entries(self) -> list[Any]:
        entries: list[Any] = self._notes.get(self.NOTE, [])
        return entries


def vote_counts(groups: Iterable[JudgedGroup], *, lam: float) -> list[GroupVotes]:
    """Return the counts of votes of each group that plays a task of the pool."""
    return [
        count_votes(
            [t.outcome.value for t in g.played.trajectories],
            [vote_values(t, v) for t, v in zip(g.played.trajectories, g.votes, strict=True)],
            lam=lam,
        )
        for g in groups
        if g.played.group.purpose in _OF_POOL
    ]


def alarm_measures(recent: Sequence[GroupVotes]) -> dict[str, float]:
    """`judge/alarm`, 1 while the judge is being gamed, else 0, and the two changes that decide it, in standard errors."""
    moved = drift(recent)
    if moved is None:
        return {"judge/alarm": 0.0}
    changes = {"judge/alarm/agreement": moved.agreement, "judge/alarm/votes": moved.votes}
    known = {name: value for name, value in changes.items() if math.isfinite(value)}
    return {"judge/alarm": float(moved.alarm)} | known


def theory_measures(counts: Sequence[GroupVotes]) -> dict[str, float]:
    """Theorems 1 and 2 as measured on one step's groups: `theory/<name>` with its 95 % interval at `/low` and `/high`."""
    judged = [g for g in counts if g.successes + g.failures]
    return estimates("theory", estimate(judged)) if judged else {}


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


def _judged_steps(group: JudgedGroup) -> Iterator[tuple[Step, int | None, list[int]]]:
    """Yield the steps with votes: step, outcome of its trajectory, votes."""
    for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
        values = vote_values(trajectory, votes)
        for step, given in zip(trajectory.steps, values, strict=True):
            if given:
                yield step, trajectory.outcome.value, given


def _votes(groups: Iterable[JudgedGroup]) -> Iterator[tuple[Step, int | None, int]]:
    for group in groups:
        for step, outcome, given in _judged_steps(group):
            yield from ((step, outcome, vote) for vote in given)


def _labelled(votes: Iterable[tuple[Step, int | None, int]]) -> list[tuple[int, int]]:
    """Return (label, vote) of the valid votes on steps that the environment labels good or bad."""
    return [(step.label, v) for step, _, v in votes if v != 0 and step.label is not None]


def _hits(labelled: Sequence[tuple[int, int]]) -> tuple[int, int, int, int]:
    """Return (right votes, votes) on good steps, then on bad ones."""
    good = [value == 1 for label, value in labelled if label == 1]
    bad = [value == -1 for label, value in labelled if label == -1]
    return sum(good), len(good), sum(bad), len(bad)


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each name that has values."""
    return {name: sum(found) / len(found) for name, found in values.items() if found}
