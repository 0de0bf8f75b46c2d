"""Bodies of requests by people. Clients send them as plain JSON."""

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


class PoolChange(Change):
    """Change the settings of a pool. Produced by: people. Consumed by: env_adapter (`PATCH /v1/pools/{pool}`).

    Candidates that wait for a person when `approval` becomes "automatic" go on waiting for one.
    """

    approval: Approval


class Rollback(Change):
    """Undo rewrites. Produced by: people. Consumed by: env_adapter (`POST /v1/tasks/{id}/rollback`).

    `to` is an ancestor of the version that the slot plays.
    """

    to: Annotated[str, Field(min_length=1, max_length=64)]


class Responses(Message):
    """What is said in an episode, turn by turn. Produced by: people. Consumed by: env_adapter (`POST /v1/tasks/{id}/play`)."""

    responses: Annotated[tuple[str, ...], Field(max_length=100)] = ()


class SessionRequest(Message):
    """Begin a session. Produced by: agents. Consumed by: env_adapter (`POST /v1/sessions`).

    With `run` it takes a place in one of the run's groups: of this `task`, of the group whose sessions have this `group` in
    common, or the first that is free. Without a run the session is recorded and trains nothing. `lifetime_s` is for
    sessions without a run; those of a run have its `env_adapter.episode_deadline_s`.
    """

    run: Annotated[str, Field(max_length=64)] = ""
    task: Annotated[str, Field(max_length=64)] = ""
    group: Name = ""
    tags: Annotated[dict[Annotated[str, Field(max_length=64)], Name], Field(max_length=16)] = Field(
        default_factory=dict
    )
    lifetime_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = 3600.0


class SessionEnd(Message):
    """End a session. Produced by: agents. Consumed by: env_adapter (`POST /v1/sessions/{id}/end`).

    With an `error` nothing was measured: the session gets no reward, and its place is given away again.
    """

    error: Reason = ""
