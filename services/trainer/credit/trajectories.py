"""A line a trajectory, made when its step is credited: what a run's trajectories are found, sorted and counted by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.trainer.credit.judged_groups import models_of
from services.trainer.credit.step_records import Credited, Sample
from triforge.types import TrainedRole, Trajectory, TrajectoryVotes

_WORDS = 1000  # characters of what a trajectory was asked and did that can be searched
_SHOWN = 200  # characters of an instruction or an error in a list
_REASON = 64


def lines_of(
    credited: Credited, versions: Mapping[TrainedRole, int], step: int | None
) -> Iterator[dict[str, Any]]:
    """The lines of a group's rollouts; `versions` are those of the weights which are trained, `step` as in `records_of`."""
    played = credited.group.played
    group, task = played.group, played.task
    for trajectory, votes, samples in zip(
        played.trajectories, credited.group.votes, credited.steps, strict=True
    ):
        outcome, steps = trajectory.outcome, trajectory.steps
        error = outcome.error.detail if outcome.error else ""
        models = models_of(credited.group, trajectory)
        newest = [versions[models[s.segment]] for s in steps]
        acted = "\n".join((trajectory.instruction, *(s.action for s in steps), error))
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
            "words": _text(acted, _WORDS).lower(),
            **_voted(trajectory, votes),
            **_trained(samples, newest),
        }


def _voted(trajectory: Trajectory, given: TrajectoryVotes | None) -> dict[str, Any]:
    """The mean of the readable votes, and whether they say something else than the outcome."""
    values = [v.value for s in (given.steps if given else ()) for v in s.votes if v.value]
    mean = sum(values) / len(values) if values else None
    against = (mean or 0.0) * (trajectory.outcome.value or 0) < 0.0
    return {"votes": len(values), "vote": mean, "against": against}


def _trained(samples: Sequence[Sample], newest: Sequence[int]) -> dict[str, Any]:
    """What became of the responses, and how old they were; `newest` is the version of each response's model now."""
    kept = [s.advantage for s in samples if not s.reason]
    reasons = Counter(s.reason for s in samples).most_common(1)
    ages = (now - v for s, now in zip(samples, newest, strict=True) for v in s.versions if v >= 0)
    return {
        "staleness": max(0, *ages, 0),
        "advantage": sum(kept) / len(kept) if kept else None,
        "reason": "" if kept or not reasons else _text(reasons[0][0], _REASON),
    }


def _text(given: str, most: int) -> str:
    """The beginning of a text, as every database takes it."""
    return given[:most].replace("\0", "").encode("utf-8", "replace").decode()
