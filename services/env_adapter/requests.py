"""Bodies of requests by people: changes by hand. Clients send them as plain JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.types import Approval, Message

Name = Annotated[str, Field(max_length=200)]
Reason = Annotated[str, Field(max_length=2000)]


class Change(Message):
    """Who changes something and why; both may be left out, and so may the whole body.

    Produced by: people. Consumed by: env_adapter (`POST` of pause, resume, retire, pin, unpin, approve, reject).
    """

    by: Name = ""
    reason: Reason = ""


class PoolChange(Message):
    """Change the settings of a pool. Produced by: people. Consumed by: env_adapter (`PATCH /v1/pools/{pool}`).

    Candidates that wait for a person when `approval` becomes "automatic" go on waiting for one.
    """

    approval: Approval
    by: Name = ""
    reason: Reason = ""


class Rollback(Message):
    """Undo rewrites. Produced by: people. Consumed by: env_adapter (`POST /v1/tasks/{id}/rollback`).

    `to` is an ancestor of the version that the slot plays.
    """

    to: Annotated[str, Field(min_length=1, max_length=64)]
    by: Name = ""
    reason: Reason = ""
