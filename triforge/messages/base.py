"""What all messages share: the base type, the closed vocabularies and failure as data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

Role = Literal["acts", "judges", "rewrites"]
TrainedRole = Literal["acts", "judges"]
Purpose = Literal["train", "measure_parent", "measure_candidate", "evaluate"]
Direction = Literal["harder", "easier"]
TaskState = Literal["active", "pending", "accepted", "rejected", "replaced", "paused", "retired"]
Split = Literal["train", "heldout"]
Params = dict[str, JsonValue]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ErrorInfo(Message):
    """A failure as data. Produced by: every room. Consumed by: conductor, people."""

    kind: str
    detail: str
    retryable: bool = False
