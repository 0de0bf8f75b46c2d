"""Messages of learners: rows, batches, weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.algorithms.algorithm import Algorithm
from triforge.config import CriticSection, LearnerSection
from triforge.config.base import Role, TrainedRole
from triforge.types.base import ErrorInfo, Extra, Message
from triforge.types.policy import PlacedImage


class TrainRow(Message):
    """One sequence to train on. All token fields are aligned with `ids`; a token with weight 0 is context only.

    Produced by: orchestrator (Parquet, named by `TrainBatch.uri`). Consumed by: learner.
    `weights` are those of the tokens in the loss (they sum to about 1 over the batch), `advantages` their advantages,
    `logprobs` the behaviour log-probabilities, `versions` the weights that sampled them (-1 where nothing was sampled).

    `key` of the policy's rows is the trajectory's id, a slash, and the row's number in it.
    `objective` names a term of a method's objective; without one the row is trained on by the batch's job (`algorithm.job`).
    `images` stand among `ids`; the learner reads their bytes from the artifact store.
    `rewards` (aligned with `ids`) and `ends` are for a critic, which estimates the advantages (0 here): the reward of each token,
    and the places of the last token of each turn that is trained on, ascending. The reward of a turn stands on its last token,
    with those of the turns after it that are not trained on.
    """

    key: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    versions: tuple[int, ...]
    task_id: str
    objective: str = ""
    images: tuple[PlacedImage, ...] = ()
    rewards: tuple[float, ...] = ()
    ends: tuple[int, ...] = ()


class WeightVersion(Message):
    """A version of a model's weights, and the folder that holds them. Part of `TrainBatch`.

    The folder's name has the number under which the weights were written first. With a `parent` the version repeats the weights
    of that older one, and training begins with an empty optimiser.
    """

    number: int
    folder: str
    parent: int | None = None


class TrainBatch(Message):
    """Everything a learner needs for one step of one role; the rows lie in the artifact store at `uri`.

    Produced by: orchestrator (stream `batches`). Consumed by: learner.
    Training starts from the version `start` and publishes the number after it; `initial` is the version that the run began with.
    `extra` has the fields of methods. `keep` weight versions stay on the disk, and the folders of the numbers `pinned`.
    `checkpoint` says whether the optimiser's state is written before the version, after it, or not at all.
    With `colocate` the learner gives its device's memory back after the step.
    `temperature` is that of the rows' sampling, `seed` of their order.
    """

    batch_id: str
    run_id: str
    role: TrainedRole
    step: int
    initial: WeightVersion
    start: WeightVersion
    uri: str
    num_rows: int
    num_tokens: int
    algorithm: Algorithm
    learner: LearnerSection = LearnerSection()
    critic: CriticSection = CriticSection()
    staleness_bound: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    seed: int = 1
    keep: Annotated[int, Field(ge=1)] = 3
    pinned: tuple[int, ...] = ()
    checkpoint: Literal["before", "after", "none"] = "before"
    colocate: bool = False
    extra: Extra = Field(default_factory=dict)

    @property
    def version(self) -> int:
        """The number of the version that training starts from."""
        return self.start.number

    @property
    def restarts(self) -> bool:
        """Whether training goes back to an older version, with an empty optimiser."""
        return self.start.parent is not None


class TensorBucket(Message):
    """Tensors that are sent together, as one run of bytes in this order. Part of `BroadcastOffer`.

    `dtypes` are torch's names (`float32`), `shapes` in elements.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class BroadcastOffer(Message):
    """The address of a learner's rank for engines, and the order of its tensors. Produced by: learner (`POST /v1/broadcasts`).

    The learner is rank 0 of `world_size`; it sends each of `buckets` once, in order, and then leaves.
    """

    address: str
    port: int
    group: str
    backend: Literal["gloo", "nccl"]
    world_size: int
    buckets: tuple[TensorBucket, ...]


class WeightsReady(Message):
    """A published weight version. Produced by: learner (stream `weights`). Consumed by: orchestrator, policy service.

    `digest` is the SHA-256 of the folder's manifest, `metrics` are the measures of the step. `handover` are the addresses of
    the APIs of the learner's ranks, which broadcast the folder's tensors to the engines that the policy service names, each
    a share of them (`POST /v1/broadcasts`); other engines read the folder.
    """

    run_id: str
    role: TrainedRole
    step: int
    version: int
    uri: str
    digest: str
    metrics: dict[str, float] = Field(default_factory=dict)
    error: ErrorInfo | None = None
    handover: tuple[str, ...] | None = None


class WeightsUpdate(Message):
    """Weights to serve. Produced by: orchestrator. Consumed by: policy service (`POST /v1/weights`)."""

    version: Annotated[int, Field(ge=0, le=10**9)]
    uri: str
    digest: str = ""
    handover: tuple[str, ...] | None = None


class WeightsRecord(Message):
    """A weight version of a run. Produced by: trainer (`GET /v1/runs/{id}/weights`). Consumed by: people.

    `origin` is the version that a rollback repeated, or that it was trained from, if that is not the one before it. `kept`: its
    folder still exists.
    """

    role: TrainedRole
    version: int
    uri: str
    digest: str
    at: float
    origin: int | None = None
    kept: bool


class WeightsState(Message):
    """The weights that a policy service serves. Produced by: policy service (`GET /v1/weights`).

    `lost` is the file or folder of this version that has gone since it was loaded: it is served on and the next version can be
    loaded, but an engine that restarts cannot get this one.
    """

    role: Role
    version: int
    uri: str
    engines: int
    ready: int
    lost: str = ""
