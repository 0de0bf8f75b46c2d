"""The record of a step: one row a response of the policy, with its credit, its weight and the votes on it.

Columns: `triforge.store.step_records.SCHEMA`. Every number of a step can be recomputed from it and from the file's metadata
(`origin_of`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from services.trainer.credit.credited import NO_TOKENS, CreditedGroup
from services.trainer.credit.judged_groups import step_votes
from triforge import __version__
from triforge.algorithms.samples import Rollout, Sample
from triforge.config import RunConfig
from triforge.types import GenerateOutput, Trajectory, TrajectoryVotes
from triforge.types.base import Extra

_OF_STEP: Final = (
    "segment", "agent_id", "observation", "response", "action", "action_valid", "next_observation", "label", "finish", "state",
)  # fmt: skip


def origin_of(config: RunConfig, **steps: Mapping[str, float]) -> dict[str, Any]:
    """Return what records follow from: the run's config, its algorithm in full, and numbers of each step."""
    return {
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "algorithm": config.algorithm.resolved.model_dump(mode="json"),
        "steps": steps,
    }


def records_of(credited: CreditedGroup, step: int | None = None) -> list[dict[str, Any]]:
    """Return the records of a group; `step` is the training step if that is not the group's own."""
    group, task = credited.group.played.group, credited.group.played.task
    common = {
        "run_id": group.run_id,
        "step": group.step if step is None else step,
        "purpose": group.purpose,
        "proposal_id": group.proposal_id or "",
        "group_id": group.group_id,
        "task_id": task.id,
        "task_slot": task.slot,
        "task_version": task.version,
        "successes": credited.tally.successes,
        "measured": credited.tally.measured,
    }
    played = zip(
        credited.group.played.trajectories, credited.group.votes, credited.rollouts, strict=True
    )
    records = [common | own for own in chain.from_iterable(_rollout_records(*p) for p in played)]
    judgement = credited.group.judgement
    if judgement is not None and records:  # of the whole group, in its first row
        records[0] |= {
            "judge_prompt_ids": list(judgement.prompt_ids),
            "extra": _json(judgement.extra),
            "texts": [
                {"extra": _json(text.extra)} | _written(text, sample)
                for text, sample in zip(judgement.texts, credited.texts, strict=True)
            ],
        }
    return records


def _rollout_records(
    trajectory: Trajectory, votes: TrajectoryVotes | None, rollout: Rollout
) -> Iterator[dict[str, Any]]:
    outcome, judged_steps, ends = trajectory.outcome, step_votes(votes), dict[int, int]()
    for step, annotated in zip(trajectory.steps, rollout.steps, strict=True):
        sample, segment = annotated.response, trajectory.segments[step.segment]
        judged, before = judged_steps.get(step.index), ends.get(step.segment, 0)
        ends[step.segment] = step.end
        yield {
            "trajectory_id": trajectory.id,
            "instruction": trajectory.instruction,
            "system": trajectory.system,
            "outcome": outcome.value,
            "score": trajectory.score,
            "share": outcome.passed,
            "outcome_error": outcome.error.detail if outcome.error else "",
            **{name: getattr(step, name) for name in _OF_STEP},
            "step_index": step.index,
            "model": sample.role,
            "env_reward": step.reward,
            "context_ids": list(segment.ids[before : step.start]),
            "response_ids": list(segment.ids[step.start : step.end]),
            "response_logprobs": list(segment.logprobs[step.start : step.end]),
            "policy_versions": list(sample.versions),
            "images": [image.id for image in step.images],
            "next_images": [image.id for image in step.next_images],
            "admissible": list(step.admissible),
            "chosen": step.chosen if step.state else None,
            "step_extra": _json(step.extra),
            "judge_prompt_ids": list(judged.prompt_ids) if judged else [],
            "votes": [
                {"value": vote.value} | _written(vote, of)
                for vote, of in zip(judged.votes if judged else (), annotated.votes, strict=True)
            ],
            "judge_images": [placed.image.id for placed in judged.images] if judged else [],
            "judge_places": [placed.model_dump() for placed in judged.images] if judged else [],
            "step_score": judged.score if judged else None,
            "step_score_version": judged.score_version if judged else None,
            "extra": _json(judged.extra) if judged else "",
            "texts": [],
            **_credit(sample),
        }


def _json(extra: Extra) -> str:
    return json.dumps(extra) if extra else ""


def _written(text: GenerateOutput, sample: Sample) -> dict[str, Any]:
    return {
        "text": text.text,
        "ids": list(text.ids),
        "logprobs": list(text.logprobs),
        "versions": list(sample.versions),
    } | _credit(sample)


def _credit(sample: Sample) -> dict[str, Any]:
    trained = not sample.reason
    elsewhere = sample.reason == NO_TOKENS  # its tokens are with the trainer that played it
    return {
        "reward": sample.reward,
        "advantage": sample.advantage if trained or elsewhere else 0.0,
        "weight": sample.weight * sample.tokens if trained else 0.0,
        "reason": sample.reason,
    }
