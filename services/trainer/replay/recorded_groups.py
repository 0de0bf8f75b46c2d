"""Judged groups rebuilt from the records of a step, so that the run's own code credits them again.

Fields that the record does not have and that no arithmetic reads stay empty: parameters of tasks, seeds, times. Of images
that the policy saw there are the hashes, but not their places among the ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from services.trainer.credit.judged_groups import UNKNOWN, judges, players
from triforge.config import RunConfig, Sampling
from triforge.rollout.transcript import index_of
from triforge.types import (
    ErrorInfo,
    GroupJudgement,
    GroupTask,
    ImageRef,
    JudgedGroup,
    JudgeText,
    Outcome,
    PlacedImage,
    Segment,
    Step,
    StepVotes,
    Task,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    VersionSpan,
    Vote,
)

Record = Mapping[str, Any]
_OF_STEP: Final = (
    "segment", "agent_id", "observation", "response", "action", "action_valid", "next_observation", "label", "finish", "state",
    "admissible",
)  # fmt: skip


def groups_of(records: Sequence[Record], config: RunConfig) -> list[JudgedGroup]:
    """Return the groups of a step in their order; a rollout that failed before its first response has no record."""
    return [_group([*own], config) for _, own in groupby(records, itemgetter("group_id"))]


def _group(records: list[Record], config: RunConfig) -> JudgedGroup:
    first = records[0]
    played = [[*own] for _, own in groupby(records, itemgetter("trajectory_id"))]
    group = GroupTask(
        group_id=first["group_id"], run_id=first["run_id"], step=first["step"], task_id=first["task_id"],
        purpose=first["purpose"], rollouts=len(played), votes=config.reward.votes, seed=0,
        proposal_id=first["proposal_id"] or None, sampling=Sampling(), env_adapter=config.env_adapter,
        reward=config.reward, agents=players(config), judges=judges(config), judge_sampling=config.models.reward.sampling(),
        extra=config.extra,
    )  # fmt: skip
    task = Task(
        id=first["task_id"], pool_id="", slot=first["task_slot"], version=first["task_version"], family="",
        instruction=first["instruction"],
    )  # fmt: skip
    return JudgedGroup(
        played=TrajectoryGroup(
            group=group, task=task, trajectories=tuple(map(_trajectory, played))
        ),
        votes=tuple(map(_votes, played)),
        judgement=_judgement(first) if config.reward.chosen.by_group else None,
    )


def _trajectory(records: list[Record]) -> Trajectory:
    first, steps, segments = records[0], list[Step](), list[Segment]()
    for _, own in groupby(sorted(records, key=itemgetter("segment")), itemgetter("segment")):
        ids, logprobs, versions = list[int](), list[float](), list[VersionSpan]()
        for record in own:
            ids += record["context_ids"]
            logprobs += [0.0] * len(record["context_ids"])
            start = len(ids)
            ids += record["response_ids"]
            logprobs += record["response_logprobs"]
            versions += _spans(record["policy_versions"], start)
            steps.append(_step(record, start, len(ids)))
        segments.append(Segment(ids=tuple(ids), logprobs=tuple(logprobs), versions=tuple(versions)))
    failed = first["outcome_error"]
    return Trajectory(
        id=first["trajectory_id"], group_id=first["group_id"], index=index_of(first["trajectory_id"]),
        task_id=first["task_id"], task_version=first["task_version"], instruction=first["instruction"],
        system=first.get("system") or "",
        steps=tuple(sorted(steps, key=lambda step: step.index)), segments=tuple(segments),
        outcome=Outcome(
            value=first["outcome"], score=first["score"], share=first["share"],
            error=ErrorInfo(kind="recorded", detail=failed) if failed else None,
        ),
    )  # fmt: skip


def _step(record: Record, start: int, end: int) -> Step:
    known = {name: record[name] for name in _OF_STEP if record.get(name) is not None}
    seen = {placed.image.id: placed.image for placed in _placed(record)}
    return Step(
        **known, index=record["step_index"], start=start, end=end, reward=record["env_reward"],
        chosen=record.get("chosen") is not False,
        extra=_extra(record, "step_extra"),
        images=_images(record["images"], seen), next_images=_images(record["next_images"], seen),
    )  # fmt: skip


def _votes(records: list[Record]) -> TrajectoryVotes | None:
    first = records[0]
    steps = tuple(
        StepVotes(
            step=record["step_index"],
            prompt_ids=tuple(record["judge_prompt_ids"]),
            votes=tuple(Vote(value=vote["value"], **_written(vote)) for vote in record["votes"]),
            images=_placed(record),
            score=record.get("step_score"),
            score_version=record.get("step_score_version"),
            extra=_extra(record),
        )
        for record in records
        if record["votes"] or record.get("step_score") is not None
    )
    judged = TrajectoryVotes(
        trajectory_id=first["trajectory_id"], group_id=first["group_id"], steps=steps
    )
    return judged if steps else None


def _judgement(first: Record) -> GroupJudgement:
    return GroupJudgement(
        group_id=first["group_id"],
        prompt_ids=tuple(first["judge_prompt_ids"]),
        texts=tuple(JudgeText(extra=_extra(t), **_written(t)) for t in first["texts"] or ()),
        extra=_extra(first),
    )


def _extra(record: Record, name: str = "extra") -> Any:
    return json.loads(record.get(name) or "{}")


def _written(text: Record) -> dict[str, Any]:
    """Return the fields that all texts of a judge have in common."""
    return {
        "text": text["text"],
        "ids": tuple(text["ids"]),
        "logprobs": tuple(text["logprobs"]),
        "versions": tuple(_spans(text["versions"], 0)),
    }


def _spans(versions: Sequence[int], start: int) -> Iterator[VersionSpan]:
    for version, own in groupby(versions):
        end = start + len([*own])
        if version != UNKNOWN:
            yield VersionSpan(version=version, start=start, end=end)
        start = end


def _placed(record: Record) -> tuple[PlacedImage, ...]:
    return tuple(map(PlacedImage.model_validate, record.get("judge_places") or ()))


def _images(hashes: Sequence[str], seen: Mapping[str, ImageRef]) -> tuple[ImageRef, ...]:
    """Return images; those that the judge has not `seen` have no size."""
    return tuple(
        seen.get(name) or ImageRef(id=name, media_type="image/png", size=1, width=1, height=1)
        for name in hashes
    )
