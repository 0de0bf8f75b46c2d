"""How tasks went, and how they are rewritten."""

from __future__ import annotations

from typing import Literal

from triforge.messages.base import Direction, Message, Purpose


class CriticNote(Message):
    """What one trajectory looked like to the judge; input of the critic. `steps` are (action, observation, votes)."""

    trajectory_id: str
    success: bool
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    judge_texts: tuple[str, ...] = ()


class AdaptSettings(Message):
    """The run's knobs that adaptation needs; a worker serves many runs and knows none of their configs."""

    acceptance: Literal["paper", "confident"] = "confident"
    acceptance_alpha: float = 0.05
    alpha_low: float = 0.2
    alpha_high: float = 0.8
    max_rollouts: int = 64
    max_pending: int = 2
    max_proposals: int = 0
    candidates: int = 3
    critic_tokens: int = 48
    null_control: float = 0.0


class TaskOutcome(Message):
    """How a group went. Produced by: conductor. Consumed by: env_adapter (queue `adapt`).

    Only measured rollouts count: `successes <= measured <= rollouts`. `policy_version` is what they were sampled with.
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
    notes: tuple[CriticNote, ...] = ()
    adapt: bool = True
    settings: AdaptSettings = AdaptSettings()


class CheckResult(Message):
    """One check of a proposal before it is measured."""

    name: str
    passed: bool
    detail: str = ""


class Proposal(Message):
    """A rewrite and everything said about it. Produced by: adapt worker. Consumed by: store, people.

    `parent_counts` and `candidate_counts` are (successes, measured) a paired group, oldest first.
    """

    id: str
    pool_id: str
    slot: str
    parent_id: str
    candidate_id: str | None
    direction: Direction
    state: Literal["pending", "accepted", "rejected", "invalid", "rolled_back"]
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
    reason: str = ""
