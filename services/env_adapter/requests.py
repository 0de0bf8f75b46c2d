"""Bodies of requests by people: pools to make, and changes by hand. Clients send them as plain JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.types import Approval, Message, Params, Split

MAX_TASKS = 100_000

Name = Annotated[str, Field(max_length=200)]
Reason = Annotated[str, Field(max_length=2000)]


class TaskUpload(Message):
    """One row of an upload. Produced by: people. Consumed by: env_adapter (`POST /v1/pools`)."""

    params: Params
    split: Split = "train"


class GenerateSpec(Message):
    """Let the family make tasks: `count` to train on and `heldout` others that no training task equals.

    Produced by: people. Consumed by: env_adapter. `options` are the family's options of difficulty.
    """

    count: Annotated[int, Field(ge=0, le=MAX_TASKS)]
    heldout: Annotated[int, Field(ge=0, le=MAX_TASKS)] = 0
    seed: Annotated[int, Field(ge=0)] = 0
    options: Params = Field(default_factory=dict)


class PoolRequest(Message):
    """Make a pool of uploaded tasks, generated ones, or both.

    Produced by: people. Consumed by: env_adapter (`POST /v1/pools`). `options` are how its tasks are played: they win
    over `env_adapter.options` of the deployment's document, and those that a run is started with win over them. With `approval` "manual" a rewrite that the test accepts waits for a
    person before it replaces its task.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    environment: str
    options: Params = Field(default_factory=dict)
    tasks: tuple[TaskUpload, ...] = ()
    generate: GenerateSpec | None = None
    approval: Approval = "automatic"


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
