"""The record of a step: one row a response of the policy, with its credit, its weight and the votes on it.

Columns: `triforge.store.step_records.SCHEMA`. A stranger recomputes every number of a step from it and from the file's
metadata (`origin_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from services.trainer.credit.judged_groups import models_of
from triforge import __version__
from triforge.config import RunConfig
from triforge.types import JudgedGroup, UnitTest, VersionSpan, Vote

UNKNOWN = -1  # the version of a token that nobody sampled, or nobody knows who


@dataclass(slots=True)
class Sample:
    """One sampled text: tokens [start, end) of its row, their versions, its credit, and what became of it.

    `weight` is that of one token in the loss; where `reason` is not empty it says why nothing was trained on.
    """

    index: int  # of the step, vote or test
    start: int
    end: int
    versions: list[int]
    reward: float | None
    advantage: float
    reason: str
    weight: float = 0.0

    def columns(self) -> dict[str, Any]:
        """What a record says of it."""
        return {
            "reward": self.reward,
            "advantage": 0.0 if self.reason else self.advantage,
            "weight": 0.0 if self.reason else self.weight * (self.end - self.start),
            "reason": self.reason,
        }


@dataclass(slots=True)
class Credited:
    """A group with the credit of its samples: `steps[trajectory][step]`, `votes[trajectory][step][vote]`, `tests[test]`.

    `blocked` says why nothing of the group is trained on, if so; `dead` whether no step of it says anything.
    """

    group: JudgedGroup
    successes: int
    measured: int
    spread: float
    blocked: str
    voteless: bool
    dead: bool
    steps: list[list[Sample]]
    votes: list[dict[int, list[Sample]]]
    tests: list[Sample]

    def judge_samples(self) -> Iterator[Sample]:
        """The votes and tests of the group."""
        for by_step in self.votes:
            yield from chain.from_iterable(by_step.values())
        yield from self.tests


def origin_of(config: RunConfig, **steps: Mapping[str, float]) -> dict[str, Any]:
    """What records follow from beside themselves: the run's config, its algorithm in full, and numbers of each step."""
    algorithm = config.algorithm.resolved.model_dump(mode="json")
    return {
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "algorithm": algorithm,
        "steps": steps,
    }


def versions_of(spans: Sequence[VersionSpan], length: int) -> list[int]:
    """The version of each of `length` tokens."""
    found = [UNKNOWN] * length
    for span in spans:
        end = min(length, span.end)
        found[span.start : end] = [span.version] * (end - span.start)
    return found


def records_of(credited: Credited, step: int | None = None) -> list[dict[str, Any]]:
    """The records of a group; `step` is the training step if that is not the group's round."""
    trajectories = range(len(credited.steps))
    records = [record for t in trajectories for record in _trajectory_records(credited, t, step)]
    tests = credited.group.tests
    if tests is not None and records:  # what was written for the whole group
        records[0] |= {
            "judge_prompt_ids": list(tests.prompt_ids),
            "programs": list(tests.programs),
            "tests": [
                {"input": test.input, "output": test.output, "accepts": list(test.accepts)}
                | _written(test, sample)
                for test, sample in zip(tests.tests, credited.tests, strict=True)
            ],
        }
    return records


def _trajectory_records(
    credited: Credited, t: int, training_step: int | None
) -> list[dict[str, Any]]:
    played, trajectory = credited.group.played, credited.group.played.trajectories[t]
    group, outcome, votes = played.group, trajectory.outcome, credited.group.votes[t]
    given = {v.step: v for v in (votes.steps if votes else ())}
    records, ends, models = [], dict[int, int](), models_of(credited.group, trajectory)
    for step, sample in zip(trajectory.steps, credited.steps[t], strict=True):
        before = ends.get(step.segment, 0)
        tokens, judged = trajectory.segments[step.segment], given.get(step.index)
        record = {
            "run_id": group.run_id,
            "step": group.step if training_step is None else training_step,
            "purpose": group.purpose,
            "proposal_id": group.proposal_id or "",
            "group_id": group.group_id,
            "task_id": played.task.id,
            "task_slot": played.task.slot,
            "task_version": played.task.version,
            "instruction": trajectory.instruction,
            "trajectory_id": trajectory.id,
            "segment": step.segment,
            "step_index": step.index,
            "agent_id": step.agent_id,
            "model": models[step.segment],
            "observation": step.observation,
            "response": step.response,
            "action": step.action,
            "action_valid": step.action_valid,
            "env_reward": step.reward,
            "next_observation": step.next_observation,
            "label": step.label,
            "context_ids": list(tokens.ids[before : step.start]),
            "response_ids": list(tokens.ids[step.start : step.end]),
            "response_logprobs": list(tokens.logprobs[step.start : step.end]),
            "policy_versions": sample.versions,
            "outcome": outcome.value,
            "score": trajectory.score,
            "outcome_error": outcome.error.detail if outcome.error else "",
            "successes": credited.successes,
            "measured": credited.measured,
            "judge_prompt_ids": [],
            "votes": [],
            "privileged": [],
            "images": [image.id for image in step.images],
            "next_images": [image.id for image in step.next_images],
            "share": outcome.passed,
            "finish": step.finish,
            "admissible": list(step.admissible),
            "state": step.state,
            "chosen": step.chosen if step.state else None,
            "considered": list(step.considered),
            "programs": [],
            "tests": [],
            "judge_images": [],
            "step_score": judged.score if judged else None,
            "step_score_version": judged.score_version if judged else None,
        } | sample.columns()
        if judged:
            votes_on = zip(judged.votes, credited.votes[t][judged.step], strict=True)
            record |= {
                "judge_prompt_ids": list(judged.prompt_ids),
                "votes": [{"value": vote.value} | _written(vote, of) for vote, of in votes_on],
                "privileged": list(judged.privileged),
                "judge_images": [placed.image.id for placed in judged.images],
            }
        records.append(record)
        ends[step.segment] = step.end
    return records


def _written(text: Vote | UnitTest, sample: Sample) -> dict[str, Any]:
    return {
        "text": text.text,
        "ids": list(text.ids),
        "logprobs": list(text.logprobs),
        "versions": sample.versions,
    } | sample.columns()
