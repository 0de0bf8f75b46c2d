"""How tasks went, and how they are rewritten."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.config import AdaptationSection, EnvAdapterSection, Sampling
from triforge.types.base import (
    ControllerName,
    Direction,
    Message,
    ProposalState,
    Purpose,
)


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


class AdaptSettings(Message):
    """The run's sections that adaptation reads; a worker serves many runs and knows none of their configs.

    Produced by: orchestrator. `sampling` is the rewriter's, `version_gap` how far the policy versions of one pair may lie
    apart.
    """

    adaptation: AdaptationSection = AdaptationSection()
    algorithm: Algorithm = Field(default_factory=lambda: resolve("rlanything"))
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    sampling: Sampling = Sampling(max_new_tokens=256)
    version_gap: Annotated[int, Field(ge=0)] = 0


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
    settings: AdaptSettings = Field(default_factory=AdaptSettings)


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
