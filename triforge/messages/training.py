"""What a learner trains on, and the weights that come out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.messages.base import ErrorInfo, Message, Params, Role, TrainedRole


class TrainRow(Message):
    """One sequence to train on. All token fields are aligned with `ids`; a token with weight 0 is context only.

    Produced by: conductor (Parquet, named by `TrainBatch.uri`). Consumed by: learner.
    `weights` say how much a token counts in the loss (they sum to about 1 over the batch), `advantages` its advantage,
    `logprobs` the behaviour log-probability.
    """

    key: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    version: int
    task_id: str


class TrainBatch(Message):
    """Everything a learner needs for one step of one role; the rows lie in the artifact store at `uri`.

    Produced by: conductor (stream `batches`). Consumed by: learner.
    """

    batch_id: str
    run_id: str
    role: TrainedRole
    step: int
    version: int
    uri: str
    num_rows: int
    num_tokens: int
    settings: Params


class StepReport(Message):
    """What one training step did. Produced by: learner. Consumed by: conductor, people. Metrics are flat numbers."""

    run_id: str
    role: TrainedRole
    step: int
    metrics: dict[str, float]


class WeightsReady(Message):
    """A published weight version. Produced by: learner (stream `weights`). Consumed by: conductor, policy room.

    `digest` is the SHA-256 of the folder's manifest.
    """

    run_id: str
    role: TrainedRole
    step: int
    version: int
    uri: str
    digest: str
    report: StepReport | None = None
    error: ErrorInfo | None = None


class WeightsUpdate(Message):
    """Serve these weights. Produced by: conductor. Consumed by: policy room (`POST /v1/weights`)."""

    version: Annotated[int, Field(ge=0, le=10**9)]
    uri: str
    digest: str = ""


class WeightsState(Message):
    """What the policy room serves. Produced by: policy room (`GET /v1/weights`)."""

    role: Role
    version: int
    uri: str
    engines: int
    ready: int
