"""What all messages share: the base type, the closed vocabularies and failure as data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

Role = Literal["policy", "reward", "rewriter"]
TrainedRole = Literal["policy", "reward"]
Purpose = Literal["train", "measure_parent", "measure_candidate", "evaluate"]
Direction = Literal["harder", "easier"]
# active: played · pending: a candidate that is measured · awaiting: a measured candidate that waits for a person ·
# rejected: a candidate that was not taken · replaced: its rewrite is played instead · rolled_back: a rewrite that a
# person undid · paused: not played for now · retired: never played again
TaskState = Literal[
    "active", "pending", "awaiting", "rejected", "replaced", "rolled_back", "paused", "retired"
]
ProposalState = Literal["pending", "awaiting", "accepted", "rejected", "invalid", "rolled_back"]
ControllerName = Literal["llm_rewrite", "ladder", "mixed", "none"]
PoolStatus = Literal["active", "paused", "retired"]
Approval = Literal["automatic", "manual"]
Split = Literal["train", "heldout"]
Params = dict[str, JsonValue]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ErrorInfo(Message):
    """A failure as data. Produced by: every service. Consumed by: orchestrator, people."""

    kind: str
    detail: str
    retryable: bool = False
