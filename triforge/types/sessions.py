"""Sessions: an agent of your own calls the policy, and the samples of its calls become a trajectory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.config import Sampling
from triforge.config.base import Params
from triforge.types.base import Message
from triforge.types.numbers import Reported
from triforge.types.policy import GenerateOutput, PlacedImage
from triforge.types.rollout import Task

SessionStatus = Literal["open", "ended", "finished", "failed"]
MetricName = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]


class OpenSession(Message):
    """A session as the policy service reads it. Produced by: env_adapter. Consumed by: policy service (Redis).

    `digest` is that of its key's secret. `sampling`, the run's, replaces the agent's own temperature, top_p, top_k and penalties,
    and limits its longest answer; None leaves all to the agent. Weights older than `oldest` do not answer: after a restart, engines
    hold their first weights until the run's are loaded.
    """

    id: str
    digest: str
    expires_at: float
    affinity: str = ""
    sampling: Sampling | None = None
    seed: int | None = None
    oldest: int = 0


class Turn(Message):
    """One sample of one answer in a session. Produced by: policy service. Consumed by: env_adapter, people.

    The prompt is the prompt of `parent`, the response of `parent`, and `new_ids`; without a parent it is `new_ids`. `answer`
    counts the session's calls, `choice` the samples of one. `images` are the new ones, with their places in the whole prompt.
    `conversation` is the digest of all messages with this one. `following` is what the last turn of a reported rollout led to.
    """

    answer: Annotated[int, Field(ge=1)]
    choice: Annotated[int, Field(ge=0)] = 0
    parent: str | None = None
    new_ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    output: GenerateOutput
    conversation: str
    system: str = ""
    observation: str = ""
    following: str = ""
    at: float

    @property
    def id(self) -> str:
        """The name of the turn within the session."""
        return f"{self.answer}.{self.choice}"


class SessionReward(Message):
    """The reward of a session. Produced by: agents, people. Consumed by: env_adapter (`POST /v1/sessions/{id}/reward`).

    One of `score` of the whole, `success`, and `steps`: rewards of single answers, by the id of the response or by its number.
    The default score is the sum of `steps`. `metrics` are the agent's own measures by name; their means over a step of a run are
    its measures `metric/NAME`. Each number is one from -1e12 to 1e12, no text. With `end` false the agent may go on.
    """

    score: Reported | None = None
    success: bool | None = None
    steps: dict[str, Reported] = Field(default_factory=dict)
    metrics: Annotated[dict[MetricName, Reported], Field(max_length=64)] = Field(
        default_factory=dict
    )
    end: bool = True


class SessionState(Message):
    """A session. Produced by: env_adapter. Consumed by: agents, people.

    `open`: the agent may call the model. `ended`: it may not, and the reward is missing. `finished`: it has a reward, and is
    trained on if it belongs to a run. `failed`: it gets no reward, for a `reason`. `index` is its place in its group.
    """

    id: str
    status: SessionStatus
    run_id: str | None = None
    group_id: str | None = None
    index: int | None = None
    task_id: str | None = None
    key: str = ""
    tags: dict[str, str] = Field(default_factory=dict)
    created_at: float
    expires_at: float
    reward: SessionReward | None = None
    reason: str = ""


class MadeSession(Message):
    """A new session. Produced by: env_adapter (`POST /v1/sessions`). Consumed by: agents.

    `base_url` is for clients of OpenAI's API; `key` opens this session alone, and is shown once.
    """

    session: SessionState
    base_url: str
    key: str
    task: Task | None = None
    options: Params = Field(default_factory=dict)


class SessionTrace(Message):
    """All samples of a session, in the order of the calls. Produced by: env_adapter. Consumed by: people."""

    session: SessionState
    turns: tuple[Turn, ...]
