"""One record a step of a trajectory: what was played, what it was credited with, and what became of it in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triforge.algorithms.credit import PolicyCredit, VoteCredit
from triforge.types import JudgedGroup, StepVotes, VersionSpan

UNKNOWN = -1  # the version of a token that nobody sampled, or nobody knows who


def step_records(
    group: JudgedGroup, t: int, policy: PolicyCredit, votes: VoteCredit, blocked: str | None
) -> list[dict[str, Any]]:
    """The records of trajectory t of a group, by the columns of `triforge.store.ledgers.SCHEMA`.

    Args:
        group: as it was judged.
        t: which of its trajectories.
        policy: credit of its steps.
        votes: credit of its votes.
        blocked: why nothing of the group is trained on, if so.
    """
    played, trajectory = group.played, group.played.trajectories[t]
    given = {} if group.votes[t] is None else {v.step: v for v in group.votes[t].steps}  # type: ignore[union-attr]
    records, before, segment = [], 0, -1
    for i, step in enumerate(trajectory.steps):
        if step.segment != segment:
            before, segment = 0, step.segment
        tokens = trajectory.segments[step.segment]
        records.append(
            {
                "run_id": played.group.run_id,
                "step": played.group.step,
                "purpose": played.group.purpose,
                "proposal_id": played.group.proposal_id or "",
                "group_id": played.group.group_id,
                "task_id": played.task.id,
                "task_slot": played.task.slot,
                "task_version": played.task.version,
                "instruction": trajectory.instruction,
                "trajectory_id": trajectory.id,
                "segment": step.segment,
                "step_index": step.index,
                "observation": step.observation,
                "response": step.response,
                "action": step.action,
                "action_valid": step.action_valid,
                "next_observation": step.next_observation,
                "label": step.label,
                "context_ids": list(tokens.ids[before : step.start]),
                "response_ids": list(tokens.ids[step.start : step.end]),
                "response_logprobs": list(tokens.logprobs[step.start : step.end]),
                "policy_versions": versions_of(tokens.versions, step.start, step.end),
                "outcome": trajectory.outcome.value,
                "outcome_error": trajectory.outcome.error.detail
                if trajectory.outcome.error
                else "",
                "successes": policy.successes,
                "measured": policy.measured,
                "reward": policy.rewards[t][i],
                "advantage": policy.advantages[t][i],
                "weight": 0.0,
                "reason": blocked or policy.reasons[t][i] or "",
                "judge_prompt_ids": list(given[step.index].prompt_ids)
                if step.index in given
                else [],
                "votes": _vote_records(given.get(step.index), votes, t, i, blocked),
                "images": [image.id for image in step.images],
                "next_images": [image.id for image in step.next_images],
                "share": trajectory.outcome.passed,
                "programs": [],
                "tests": [],
                "judge_images": [placed.image.id for placed in given[step.index].images]
                if step.index in given
                else [],
            }
        )
        before = step.end
    return records


def versions_of(spans: Sequence[VersionSpan], start: int, end: int) -> list[int]:
    """The version of each of the tokens [start, end)."""
    found = [UNKNOWN] * (end - start)
    for span in spans:
        first, last = max(start, span.start) - start, min(end, span.end) - start
        if first < last:
            found[first:last] = [span.version] * (last - first)
    return found


def _vote_records(
    given: StepVotes | None, credit: VoteCredit, t: int, i: int, blocked: str | None
) -> list[dict[str, Any]]:
    if given is None:
        return []
    return [
        {
            "value": vote.value,
            "text": vote.text,
            "ids": list(vote.ids),
            "logprobs": list(vote.logprobs),
            "versions": versions_of(vote.versions, 0, len(vote.ids)),
            "reward": credit.rewards[t][i][j],
            "advantage": credit.advantages[t][i][j],
            "weight": 0.0,
            "reason": blocked or credit.reasons[t][i][j] or "",
        }
        for j, vote in enumerate(given.votes)
    ]
