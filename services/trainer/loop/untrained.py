"""The report of steps that trained the policy, or a trainer's judge, on nothing: how much was left out, why, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from services.trainer.credit import credited
from triforge.algorithms import advantages, credit, filters
from triforge.algorithms.jobs import imitation

_SHOWN: Final = 200  # characters of the sample answer
_SOLVED: Final = "give tasks that the policy solves now and then"
_ALIKE: Final = f"{_SOLVED}, or raise env_adapter.rollouts and models.policy.temperature"
_FEW: Final = 0.5  # of the answers
_INADMISSIBLE: Final = "most answers are no admissible action"
_HELD: Final = "set env_adapter.admissible_only = true if the environment lists its actions, else "
_SHOWN_HOW: Final = "name a model that can answer, let the instruction say how, or for `tiny` give the family a `solution`"
_LOST: Final = "see `triforge logs rollout` and `triforge logs judge`"
_MENDS: Final = {
    advantages.ZERO_SPREAD: _ALIKE,
    advantages.NEGATIVE: "give scores of at least 0, or set algorithm.overrides.normalise = 'std'",
    filters.ONE_SIDED: _ALIKE,
    filters.LOW_SPREAD: _ALIKE,
    imitation.NOT_A_SUCCESS: _ALIKE,
    imitation.NO_PAIR: _ALIKE,
    filters.OUTSIDE_POLICY_BAND: f"widen algorithm.overrides.policy_band, or {_ALIKE}",
    credit.NO_OUTCOME: _LOST,
    credit.NOT_JUDGED: _LOST,
    credited.PARTIAL: f"{_LOST}, or lower run.min_measured",
    credited.TRUNCATED: "raise models.policy.max_new_tokens",
    credited.TOO_LONG: "raise trainer.policy.max_tokens",
    credited.STALE: "raise run.staleness_bound",
    credited.MEASURES: "make a larger pool, lower adaptation.max_pending or set algorithm.overrides.train_on_pairs = 'both'",
}
_NO_ROW: Final = "label steps (page `labels` of the run), or take a target that learns from outcomes (algorithm.preset = 'rlanything')"
_JUDGE_MENDS: Final = {
    advantages.ZERO_SPREAD: f"{_SOLVED}, or raise reward.votes and models.reward.temperature",
    filters.OUTSIDE_REWARD_BAND: f"{_SOLVED}, or set algorithm.overrides.reward_band = 'none'",
}


def untrained_judge(steps: Iterable[Mapping[str, float]]) -> str:
    """Return why the judge was trained on nothing in steps with these measures; empty if it was, or if it is not to learn from its votes."""
    total = Counter[str]()
    for measures in steps:
        total.update(measures)
    if total["rows/reward"]:
        return ""
    if total["votes/trained_share"]:
        return f"the judge trained on nothing: its target made no training row of these rollouts; to change: {_NO_ROW}"
    why = max(_JUDGE_MENDS, key=lambda reason: total[f"votes/{reason}"])
    left = total[f"votes/{why}"]
    if not left:
        return ""
    return f"the judge trained on no vote; {left:.0f} votes left out: {why}; to change: {_JUDGE_MENDS[why]}"


def untrained(
    steps: Iterable[Mapping[str, float]], answer: str = "", *, admissible_only: bool = False
) -> str:
    """Return why the policy was trained on nothing in steps with these measures; empty if it was trained.

    `answer` is any response of the policy in them, `admissible_only` the option of that name.
    """
    total = Counter[str]()
    for measures in steps:
        total.update(measures)
        total["taken"] += 1
    if total["rows/policy"] or not total["taken"]:
        return ""
    subject = "the policy trained on" if total["rows/reward"] else "trained on"
    name = "score" if "score" in total else "success"
    parts = [
        f"{subject} 0 of {total['groups']:.0f} groups ({name} {total[name] / total['taken']:.2f})"
    ]
    reasons = {
        name.removeprefix("steps/"): n for name, n in total.items() if name.startswith("steps/")
    }
    if reasons:
        why = max(reasons, key=lambda name: reasons[name])
        parts.append(f"{reasons[why]:.0f} of {sum(reasons.values()):.0f} answers left out: {why}")
        if total["valid_actions"] < _FEW * total["taken"] and "valid_actions" in total:
            parts.append(f"to change: {_INADMISSIBLE}: {_HELD * (not admissible_only)}{_SHOWN_HOW}")  # fmt: skip
        elif why in _MENDS:
            parts.append(f"to change: {_MENDS[why]}")
    parts += [f"a sample answer: {answer[:_SHOWN]!r}"] if answer else []
    return "; ".join(parts)
