"""A line per trajectory, made when its step is credited: the index by which trajectories of a run are searched and sorted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from services.trainer.credit.credited import NO_TOKENS, CreditedGroup
from triforge.algorithms.samples import Rollout
from triforge.types import TrainedRole

_WORDS = 1000  # characters of instruction, actions and error that can be searched
_SHOWN = 400  # characters of an instruction or an error in a list
_REASON = 64


def lines_of(
    credited: CreditedGroup, versions: Mapping[TrainedRole, int], step: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a group's rollouts; `versions` are those of the trained weights, `step` as in `records_of`."""
    group, task = credited.group.played.group, credited.group.played.task
    for trajectory, rollout in zip(
        credited.group.played.trajectories, credited.rollouts, strict=True
    ):
        outcome, steps = trajectory.outcome, trajectory.steps
        error = outcome.error.detail if outcome.error else ""
        words = "\n".join((trajectory.instruction, *(s.action for s in steps), error))
        yield {
            "id": trajectory.id,
            "run_id": group.run_id,
            "step": group.step if step is None else step,
            "purpose": group.purpose,
            "group_id": group.group_id,
            "task_id": task.id,
            "task_slot": task.slot,
            "kind": task.kind,
            "instruction": _text(trajectory.instruction, _SHOWN),
            "outcome": outcome.value,
            "score": trajectory.score,
            "error": _text(error, _SHOWN),
            "length": len(steps),
            "tokens": sum(s.end - s.start for s in steps),
            "truncated": any(s.finish == "length" for s in steps),
            "words": _text(words, _WORDS).lower(),
            **_judgement(rollout),
            **_training(rollout, versions),
        }


def _judgement(rollout: Rollout) -> dict[str, Any]:
    """Return the mean of the readable votes, and whether its sign is another than the outcome's."""
    values = [vote.value for step in rollout.steps for vote in step.votes if vote.value]
    mean = sum(values) / len(values) if values else None
    against = (mean or 0.0) * (rollout.outcome or 0) < 0.0
    return {"votes": len(values), "vote": mean, "against": against}


def _training(rollout: Rollout, versions: Mapping[TrainedRole, int]) -> dict[str, Any]:
    """Return how many versions the responses lag behind, their mean advantage, or why they have none."""
    samples = [step.response for step in rollout.steps]
    kept = [sample.advantage for sample in samples if sample.reason in ("", NO_TOKENS)]
    reasons = Counter(sample.reason for sample in samples).most_common(1)
    lags = (versions[s.role] - version for s in samples for version in s.versions if version >= 0)
    return {
        "staleness": max(0, *lags, 0),
        "advantage": sum(kept) / len(kept) if kept else None,
        "reason": "" if kept or not reasons else _text(reasons[0][0], _REASON),
    }


def _text(text: str, most: int) -> str:
    """Return the beginning of a text in characters that every database takes."""
    return text[:most].replace("\0", "").encode("utf-8", "replace").decode()
