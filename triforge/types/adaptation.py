"""How tasks went, and how they are rewritten."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.types.base import (
    ControllerName,
    Direction,
    Message,
    Params,
    ProposalState,
    Purpose,
)
from triforge.types.generation import Sampling


class JudgedStep(Message):
    """What the judge said of one step: the texts of its votes, in the order of the votes."""

    step: int
    texts: tuple[str, ...]


class CriticNote(Message):
    """What one trajectory looked like to the judge; input of the critic. `steps` are (action, observation, votes).

    `judged` has the steps on which at least one vote is negative, if the judge gave reasons at all. Where the trajectory's
    last word is a program, `hidden` is the share of the task's own tests that it passes, and `written` how many of the tests
    that the judge has written it passes, and of how many.
    """

    trajectory_id: str
    success: bool
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    judged: tuple[JudgedStep, ...] = ()
    hidden: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    written: tuple[int, int] | None = None


class LadderSettings(Message):
    """The ladder's options: how wide its window is, when it moves, and what its generator makes at every level."""

    levels: Annotated[int, Field(ge=1)] = 4
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    rollouts: Annotated[int, Field(ge=1)] = 128
    start: Annotated[int, Field(ge=0)] = 0
    options: Params = Field(default_factory=dict)


class AdaptSettings(Message):
    """The run's options that adaptation needs; a worker serves many runs and knows none of their configs.

    Produced by: orchestrator (config and preset). `alpha_low` and `alpha_high` are the band; `max_proposals`,
    `max_consecutive` 0 are no limit; `notes` is how many trajectories the critic reads, `critic_tokens` what one of its
    answers may have, `critic_budget` all of them; `null_control` is the share of proposals whose candidate is the
    unchanged parent; `sampling` is the rewriter's. `max_version_gap` is how far the policy versions of one pair may lie
    apart. `mixed_with` and `original_share` are for the controller `mixed`.
    """

    controller: ControllerName = "llm_rewrite"
    mixed_with: Literal["llm_rewrite", "ladder"] = "llm_rewrite"
    original_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    acceptance: Literal["paper", "confident"] = "confident"
    acceptance_alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    alpha_low: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    alpha_high: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8
    max_rollouts: Annotated[int, Field(ge=1)] = 64
    max_version_gap: Annotated[int, Field(ge=0)] = 0
    max_pending: Annotated[int, Field(ge=0)] = 2
    max_proposals: Annotated[int, Field(ge=0)] = 0
    max_consecutive: Annotated[int, Field(ge=0)] = 8
    max_acceptance: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    acceptance_window: Annotated[int, Field(ge=1)] = 20
    max_drift: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    candidates: Annotated[int, Field(ge=1, le=16)] = 3
    critic_tokens: Annotated[int, Field(ge=1)] = 48
    critic_budget: Annotated[int, Field(ge=0)] = 512
    notes: Annotated[int, Field(ge=1)] = 2
    deadline_s: Annotated[float, Field(gt=0.0)] = 600.0
    null_control: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    solver_tries: Annotated[int, Field(ge=1, le=256)] = 8
    max_steps: Annotated[int, Field(ge=1)] = 14
    options: Params = Field(default_factory=dict)
    sampling: Sampling = Sampling(max_new_tokens=256)
    ladder: LadderSettings = LadderSettings()


class TaskOutcome(Message):
    """How a group went. Produced by: orchestrator. Consumed by: env_adapter (queue `adapt`).

    Only measured rollouts count: `successes <= measured <= rollouts`. `policy_version` is the oldest version that
    sampled a token of it, `newest_version` the newest (none: the same). `adapt` False only records the measurement (and
    decides what is pending).
    """

    group_id: str
    run_id: str
    step: int
    pool_id: str
    task_id: str
    purpose: Purpose
    proposal_id: str | None = None
    successes: int
    measured: int
    rollouts: int
    policy_version: int
    newest_version: int | None = None
    notes: tuple[CriticNote, ...] = ()
    adapt: bool = True
    settings: AdaptSettings = AdaptSettings()


class CheckResult(Message):
    """One check of a proposal before it is measured."""

    name: str
    passed: bool
    detail: str = ""


class Proposal(Message):
    """A change of a task and everything said about it. Produced by: adapt worker. Consumed by: store, people.

    `controller` is who made it; the ladder replaces tasks without a critic, a prompt or a measurement. `drift` is the
    candidate's distance from the slot's root, 0 to 1. `discarded` says of each pair that was played but not counted why
    it was not. `decided_step` is the step whose measurement brought the verdict.
    `parent_counts` and `candidate_counts` are (successes, measured) a paired group, oldest first. `verdict` is what the
    acceptance test said; it differs from `state` for a null control, whose candidate is the unchanged parent and is
    never taken, for a proposal whose parent left in the meantime, and where a person decided: `awaiting` is accepted by
    the test and waits for one.
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
    critic: str
    prompt: str
    answer: str
    instruction_before: str
    instruction_after: str = ""
    checks: tuple[CheckResult, ...] = ()
    parent_counts: tuple[tuple[int, int], ...] = ()
    candidate_counts: tuple[tuple[int, int], ...] = ()
    verdict: Literal["", "accepted", "rejected"] = ""
    null_control: bool = False
    reason: str = ""
    controller: ControllerName = "llm_rewrite"
    drift: float | None = None
    discarded: tuple[str, ...] = ()
    decided_step: int | None = None
