"""What all messages share: the base type, the closed vocabularies and failure as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from triforge.config.base import (
    Approval as Approval,
)
from triforge.config.base import (
    ControllerName as ControllerName,
)
from triforge.config.base import (
    Direction as Direction,
)
from triforge.config.base import (
    Params as Params,
)
from triforge.config.base import (
    PoolStatus as PoolStatus,
)
from triforge.config.base import (
    ProposalState as ProposalState,
)
from triforge.config.base import (
    Purpose as Purpose,
)
from triforge.config.base import (
    Role as Role,
)
from triforge.config.base import (
    Split as Split,
)
from triforge.config.base import (
    TaskState as TaskState,
)
from triforge.config.base import (
    TrainedRole as TrainedRole,
)


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ErrorInfo(Message):
    """A failure as data. Produced by: every service. Consumed by: orchestrator, people."""

    kind: str
    detail: str
    retryable: bool = False
