"""The base of all messages, a page of a list, and failure as data."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

_T = TypeVar("_T")

Extra = dict[str, JsonValue]
"""Fields that methods add to a message: the method's name, and a value whose type the method declares."""


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Page(Message, Generic[_T]):
    """A part of a list. Produced by: env_adapter, trainer. Consumed by: people. `next_cursor` is None on the last page."""

    items: tuple[_T, ...]
    next_cursor: str | None = None


class ErrorInfo(Message):
    """A failure as data. Produced by: every service. Consumed by: orchestrator, people.

    `raised` names the exception of a user's code behind it and its line, `KeyError at FILE:LINE`.
    """

    kind: str
    detail: str
    retryable: bool = False
    raised: str = ""
