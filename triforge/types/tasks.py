"""Tasks, and the groups that are to be played."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.config import EnvAdapterSection, RewardSection, Sampling
from triforge.types.base import Message, Params, Purpose, Split, TaskState


class Task(Message):
    """One problem, with a version and a parent. Produced by: env_adapter. Consumed by: rollout workers, people.

    `id` names this version; `slot` is the id of the root all its versions descend from. `params` belong to the family,
    `kind` is its word for tasks of this sort. A `pinned` slot is never rewritten.
    """

    id: str
    pool_id: str
    slot: str
    version: Annotated[int, Field(ge=0)] = 0
    parent_id: str | None = None
    family: str
    split: Split = "train"
    state: TaskState = "active"
    instruction: str
    params: Params = Field(default_factory=dict)
    kind: str = ""
    pinned: bool = False


class PlannedGroup(Message):
    """One group of a step's plan. Produced by: env_adapter's store. Consumed by: orchestrator."""

    task_id: str
    slot: str
    purpose: Purpose
    proposal_id: str | None = None


class GroupTask(Message):
    """Play K episodes of one task version. Produced by: orchestrator. Consumed by: rollout workers (queue `rollout`).

    `votes` is m, the judge's samples: votes a step, or with `reward.kind` "unit_tests" tests a group; 0 plays without
    judging. `env_adapter` says how episodes are played, `reward` how they are judged.
    """

    group_id: str
    run_id: str
    step: int
    task_id: str
    purpose: Purpose
    rollouts: Annotated[int, Field(ge=1, le=256)]
    votes: Annotated[int, Field(ge=0, le=64)] = 0
    seed: int
    proposal_id: str | None = None
    sampling: Sampling
    judge_sampling: Sampling = Sampling()
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    reward: RewardSection = RewardSection()
