"""Messages of env_adapter: pools, plans, outcomes of groups, and proposals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field

from triforge.config.base import (
    Approval,
    Direction,
    Params,
    PoolStatus,
    ProposalState,
    Purpose,
    Split,
)
from triforge.types.base import Message
from triforge.types.rollout import Task

MAX_TASKS: Final = 100_000  # of a pool


class TaskUpload(Message):
    """One row of an upload. Produced by: people. Consumed by: env_adapter (`POST /v1/pools`)."""

    params: Params
    split: Split = "train"


class GenerateSpec(Message):
    """Tasks that the family generates: `count` to train on and `heldout` others that no training task equals.

    Produced by: people. Consumed by: env_adapter. `options` are the family's options of difficulty. With `at_most` fewer are
    made where the family has fewer different ones; a fifth of them is then held out.
    """

    count: Annotated[int, Field(ge=0, le=MAX_TASKS)]
    heldout: Annotated[int, Field(ge=0, le=MAX_TASKS)] = 0
    seed: Annotated[int, Field(ge=0)] = 0
    options: Params = Field(default_factory=dict)
    at_most: bool = False


class PoolRequest(Message):
    """A new pool of uploaded tasks, generated ones, or both.

    Produced by: people. Consumed by: env_adapter (`POST /v1/pools`). `options` are those of playing its tasks: they override
    `env_adapter.options` of the deployment's document, and the request of a run overrides them. With `approval` "manual" a
    rewrite that the test accepts waits for a person before it replaces its task.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    environment: str
    options: Params = Field(default_factory=dict)
    tasks: tuple[TaskUpload, ...] = ()
    generate: GenerateSpec | None = None
    approval: Approval = "automatic"


class PoolState(Message):
    """A pool with its counts. Produced by: env_adapter. Consumed by: people, orchestrator.

    `tasks` counts versions by split and state. `proposals` counts rewrites by state, without null controls; `null_control` counts
    the verdicts on the unchanged tasks among the candidates. Runs on a paused pool wait at their next step; a retired pool is
    not played. `programs`: its tasks are solved by programs. `labelled`: its environments label every step. `scored`: its episodes
    have scores, and no success unless a run sets `success_at`. `levelled`: its tasks have difficulty levels. `shown`: what its tasks
    have for judges (`reward.shows`), where that was looked up.
    """

    id: str
    name: str
    environment: str
    options: Params = Field(default_factory=dict)
    created_at: float
    tasks: dict[Split, dict[str, int]]
    proposals: dict[str, int]
    null_control: dict[str, int] = Field(default_factory=dict)
    state: PoolStatus = "active"
    approval: Approval = "automatic"
    programs: bool = False
    labelled: bool = False
    scored: bool = False
    levelled: bool = False
    tenant: str = "default"
    shown: tuple[Literal["rubric", "reference"], ...] | None = None


class Measurement(Message):
    """The counts of one group of a task version; `successes <= measured <= rollouts`. Produced by: env_adapter, orchestrator.

    `score` is the mean of the `scored` rollouts, with and without known success.
    `policy_version` is the oldest version that sampled a token of it, `newest_version` the newest (none: the same).
    """

    group_id: str
    run_id: str
    step: int
    purpose: Purpose
    proposal_id: str | None = None
    successes: int
    measured: int
    rollouts: int
    policy_version: int
    newest_version: int | None = None
    score: float | None = None
    scored: int = 0


def mean_score(groups: Iterable[Measurement]) -> dict[str, float]:
    """Return the mean score of groups' rollouts and their number (`score`, `scored`); empty if it is that of their successes."""
    rows = [(group, group.score) for group in groups if group.score is not None]
    scored = sum(group.scored for group, _ in rows)
    total = math.fsum(group.scored * score for group, score in rows)
    if not scored or math.isclose(total, sum(group.successes for group, _ in rows), abs_tol=1e-9):
        return {}
    return {"score": total / scored, "scored": scored}


class ProposalDetail(Message):
    """A rewrite with the groups that measured it, oldest first.

    Produced by: env_adapter (`GET /v1/proposals/{id}`). Groups with purpose `measure_parent` played the parent, the
    others the candidate.
    """

    proposal: Proposal
    measurements: tuple[Measurement, ...] = ()


class TaskDetail(Message):
    """A task version, the rewrite that made it, its measurements and its own rewrites.

    Produced by: env_adapter (`GET /v1/tasks/{id}`, and in `Lineage`). `children` are ids of the versions rewritten from
    this one; `attempts` are rewrites that led to no valid candidate.
    """

    task: Task
    made_by: Proposal | None = None
    measurements: tuple[Measurement, ...] = ()
    children: tuple[str, ...] = ()
    attempts: tuple[Proposal, ...] = ()


class Lineage(Message):
    """All versions of a slot, the root first. Produced by: env_adapter (`GET /v1/tasks/{id}/lineage`).

    The tree is a list whose nodes name their children, because a slot may be hundreds of versions deep. A version with a
    parent that no rewrite made is a roll-back: a copy of its parent. `active_id` is None while the slot is not played.
    """

    slot: str
    pool_id: str
    active_id: str | None
    versions: tuple[TaskDetail, ...]


class PlanRequest(Message):
    """A request for the plan of a step. Produced by: orchestrator. Consumed by: env_adapter (`POST /v1/pools/{id}/plans`).

    The first request for (run_id, step, kind, refill) decides; a repeated one gets the same plan whatever its other fields are.
    A run that measures proposals (`max_pending` above 0) withdraws the pending ones of other runs. Pairs that measure
    proposals are played in addition to `groups` training groups, or without `pairs_on_top` in place of two of them each.
    `refill` counts, from 1, the draws of training groups that replace some of the step's from which nothing can be learnt;
    they are played without pairs, and may be none.
    """

    run_id: Annotated[str, Field(min_length=1, max_length=64)]
    step: Annotated[int, Field(ge=0, le=10**9)]
    kind: Literal["train", "evaluate"]
    groups: Annotated[int, Field(ge=1, le=100_000)]
    seed: Annotated[int, Field(ge=0)] = 0
    max_pending: Annotated[int, Field(ge=0)] = 0
    pairs_on_top: bool = True
    refill: Annotated[int, Field(ge=0, le=1000)] = 0


class DiagnosisNote(Message):
    """A trajectory and its judgement, for the diagnosis of a proposal. `steps` are (action, observation, votes).

    `judged` are (step, texts of its votes) for the steps with a negative vote. If the trajectory's result is a program,
    `hidden` is the share of the task's own tests that it passes; `judgement` says what it passes of a judgement of its group.
    """

    trajectory_id: str
    success: bool
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    judged: tuple[tuple[int, tuple[str, ...]], ...] = ()
    hidden: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    judgement: str = ""


class TaskOutcome(Measurement):
    """The result of a group. Produced by: orchestrator. Consumed by: env_adapter (queue `adapt`).

    `notes` are the measured rollouts of a training group in a run whose controller reads them.
    """

    pool_id: str
    task_id: str
    notes: tuple[DiagnosisNote, ...] = ()


class CheckResult(Message):
    """One check of a proposal before it is measured."""

    name: str
    passed: bool
    detail: str = ""


class AcceptanceTest(Message):
    """The rule and numbers by which a proposal is decided: with its direction and counts all that `decide` reads.

    `low` and `high` are the band. The rule `confident` has `alpha`, `max_rollouts`, the numbers of pairs at which the test looked
    at the data (`looks`) and the one-sided p-value of all pairs so far. The rule `paper` compares `trigger_accuracy` with the
    first of `candidate_counts` (`paper_accepts`).
    """

    rule: Literal["paper", "confident"]
    low: float
    high: float
    alpha: float | None = None
    max_rollouts: int | None = None
    looks: tuple[int, ...] = ()
    p_value: float | None = None


class Proposal(Message):
    """A change of a task with its history. Produced by: adapt worker. Consumed by: store, people.

    `controller` made it; one that rewrites nothing gives no diagnosis, prompt or measurement. `drift` is the candidate's
    distance from the slot's root, 0 to 1. `discarded` are the reasons of pairs that were played but not counted.
    `decided_step` is the step whose measurement led to the verdict.
    `parent_counts` and `candidate_counts` are (successes, measured) a paired group, oldest first. `verdict` is the acceptance
    test's; it differs from `state` for a null control, whose candidate is the unchanged parent and is never taken, for a
    proposal whose parent was replaced meanwhile, and where a person decides: `awaiting` is accepted by the test and waits for
    one. `test` is set from the first counted pair on.
    """

    id: str
    pool_id: str
    slot: str
    parent_id: str
    candidate_id: str | None
    direction: Direction
    state: ProposalState
    run_id: str
    step: int
    trigger_accuracy: float
    diagnosis: str
    prompt: str
    answer: str
    instruction_before: str
    instruction_after: str = ""
    checks: tuple[CheckResult, ...] = ()
    parent_counts: tuple[tuple[int, int], ...] = ()
    candidate_counts: tuple[tuple[int, int], ...] = ()
    test: AcceptanceTest | None = None
    verdict: Literal["", "accepted", "rejected"] = ""
    null_control: bool = False
    reason: str = ""
    controller: str = "llm_rewrite"
    drift: float | None = None
    discarded: tuple[str, ...] = ()
    decided_step: int | None = None
