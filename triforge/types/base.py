"""What all messages share: the base type, and failure as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ErrorInfo(Message):
    """A failure as data. Produced by: every service. Consumed by: orchestrator, people."""

    kind: str
    detail: str
    retryable: bool = False
