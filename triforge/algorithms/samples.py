"""Samples, the texts that models wrote, in the rollouts of one task; credit annotates them in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True, kw_only=True, eq=False)
class Sample:
    """A text that a model wrote, with its credit: a response of a rollout, a vote on one, or a text on the whole group.

    Attributes:
        role: the model that wrote it.
        trajectory: the id of its rollout, or of its group; `step` is the response's index, `number` that of the judge's text.
        start, end: its tokens `[start, end)` in its row; `versions` are the weights that sampled each of them.
        value: +1 or -1 of a vote, 0 if it could not be parsed.
        reward: None where nothing was measured.
        reason: why it is not trained on; empty if it is, by `advantage` and with `weight` in the loss for each token.
    """

    kind: Literal["response", "vote", "text"] = "response"
    role: str = "policy"
    trajectory: str = ""
    step: int = 0
    number: int = 0
    start: int = 0
    end: int = 0
    versions: Sequence[int] = ()
    value: int = 0
    reward: float | None = None
    advantage: float = 0.0
    weight: float = 0.0
    reason: str = ""

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self.end - self.start

    def credit(self, reward: float | None, advantage: float, reason: str | None) -> None:
        """Annotate the sample; one with a reason has no advantage."""
        self.reward, self.reason = reward, reason or ""
        self.advantage = 0.0 if reason else advantage


@dataclass(slots=True, kw_only=True, eq=False)
class JudgedStep:
    """A response, the judgement of it, and what the environment reported.

    Attributes:
        score: stands for the mean vote, of a scorer that casts no votes.
        state: names the state in which the response was given; equal states have equal names.
        reward: the environment's own, None where it gives none; in tree rollouts candidates are compared by it.
        penalty: is added to the step's reward (`penalties.charge`).
        label: +1 or -1, what is known to be right about the step; None where it was not audited.
        extra: further judgements by name, which a judge target may read.
    """

    response: Sample
    votes: list[Sample] = field(default_factory=list)
    score: float | None = None
    state: str = ""
    action: str = ""
    action_valid: bool = True
    reward: float | None = None
    penalty: float = 0.0
    label: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def values_of(self, role: str) -> list[int]:
        """Return the values of one judge's votes."""
        return [vote.value for vote in self.votes if vote.role == role]

    @property
    def judgement(self) -> list[float]:
        """The values of the votes, or the score in their place; empty if the step was not judged."""
        if self.votes or self.score is None:
            return [vote.value for vote in self.votes]
        return [self.score]


@dataclass(slots=True, kw_only=True, eq=False)
class Rollout:
    """One rollout of a task.

    Attributes:
        outcome: +1 or -1; None where it was not measured, or success is not known.
        score: the number that the policy is credited by; None where nothing was measured.
        max_steps: the turns that the rollout had.
        penalty: is added to the reward of the whole rollout (`penalties.charge`).
    """

    outcome: int | None
    score: float | None
    steps: list[JudgedStep]
    max_steps: int = 0
    penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of a group of rollouts, and the deviation of its rewards (`filters.reward_deviation`)."""

    successes: int
    measured: int
    spread: float
