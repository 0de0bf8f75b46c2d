"""Sessions: an agent that is not ours talks to the policy, and what it sampled becomes a trajectory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.config import Sampling
from triforge.config.base import Params
from triforge.types.base import Message
from triforge.types.policy import GenerateOutput, PlacedImage
from triforge.types.rollout import Task

SessionStatus = Literal["open", "ended", "finished", "failed"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
MetricName = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]


class OpenSession(Message):
    """What the policy service has to know of a session. Produced by: env_adapter. Consumed by: policy service (Redis).

    `digest` is that of its key's secret. With `sampling`, the run's, the agent's own temperature, top_p, top_k and penalties
    do not count, and its longest answer is the shorter of both; None leaves all to the agent.
    """

    id: str
    digest: str
    expires_at: float
    affinity: str = ""
    sampling: Sampling | None = None
    seed: int | None = None


class Turn(Message):
    """One sample of one answer in a session. Produced by: policy service. Consumed by: env_adapter, people.

    The prompt is the prompt of `parent`, the response of `parent`, and `new_ids`; without a parent it is `new_ids`. `answer`
    counts the session's calls, `choice` the samples of one. `images` are the new ones, where they stand in the whole prompt. `conversation` is the digest of all messages with this one.
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
    at: float

    @property
    def id(self) -> str:
        """Its name within the session."""
        return f"{self.answer}.{self.choice}"


class SessionReward(Message):
    """How a session went. Produced by: agents, people. Consumed by: env_adapter (`POST /v1/sessions/{id}/reward`).

    `score` is what the whole is worth, `success` whether it succeeded; one of them, or `steps`: rewards of single answers, by
    the id of the response or by its number. Without a score it is the sum of `steps`. `metrics` are the agent's own measures of
    how it went, by name; their means over a step of a run are its measures `metric/NAME`. `end` false lets the agent go on.
    """

    score: Finite | None = None
    success: bool | None = None
    steps: dict[str, Finite] = Field(default_factory=dict)
    metrics: Annotated[dict[MetricName, Finite], Field(max_length=64)] = Field(default_factory=dict)
    end: bool = True


class SessionState(Message):
    """A session. Produced by: env_adapter. Consumed by: agents, people.

    `open`: the agent may ask the model. `ended`: it may not, and the reward is waited for. `finished`: it has a reward and is
    trained on if it belongs to a run. `failed`: it has none and gets none, `reason` says why. `index` is its place in its group.
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

    `base_url` is where clients of OpenAI's API ask the model; `key` opens this session and nothing else, and is shown once.
    """

    session: SessionState
    base_url: str
    key: str
    task: Task | None = None
    options: Params = Field(default_factory=dict)


class SessionTrace(Message):
    """All that was sampled in a session, in the order of the calls. Produced by: env_adapter. Consumed by: people."""

    session: SessionState
    turns: tuple[Turn, ...]
