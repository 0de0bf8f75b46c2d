"""An environment, a policy and a group that fit on a page."""

from __future__ import annotations

from tests.sections import flat_group
from triforge.rollout.episode import play_episode
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    Sampling,
    Task,
    Trajectory,
    VersionSpan,
)

TASK = Task(id="t", pool_id="p", slot="t", version=2, family="count", instruction="reach 3")


def group(**changes: object) -> GroupTask:
    fields: dict[str, object] = {
        "group_id": "g",
        "run_id": "r",
        "step": 0,
        "task_id": "t",
        "purpose": "train",
        "rollouts": 1,
        "seed": 5,
        "sampling": Sampling(max_new_tokens=4),
        "max_steps": 10,
        "deadline_s": 30.0,
        "retries": 0,
    }
    return flat_group(**fields | changes)


class Count:
    """Says 0, 1, 2...; the task is solved when three responses were played."""

    def __init__(self, *, system: str = "count", goal: int = 3) -> None:
        self.system, self.goal, self.n = system, goal, 0
        self.closed = 0
        self.seeds: list[int] = []

    async def reset(self, task: Task, *, seed: int) -> Reset:
        self.seeds.append(seed)
        return Reset(observation=Observation(text=f"{task.instruction}: 0"), system=self.system)

    async def step(self, response: str) -> StepResult:
        self.n += 1
        won = self.n >= self.goal
        return StepResult(
            observation=Observation(text=str(self.n)),
            action=response.strip(),
            action_valid=response == "up",
            done=won,
            success=won,
            label=1 if response == "up" else -1,
        )

    async def close(self) -> None:
        self.closed += 1


class Parrot:
    """A policy that always says "up" (ids 7, 8) and renders a message as one id: 100 plus its place in the chat."""

    def __init__(self, *, version: int = 4, finish: str = "stop") -> None:
        self.version, self.finish = version, finish
        self.requests: list[GenerateRequest] = []

    def prompt(self, request: GenerateRequest) -> tuple[int, ...]:
        new = range(len(request.prefix_ids), len(request.prefix_ids) + len(request.messages))
        return (*request.prefix_ids, *(100 + n for n in new))

    def output(self) -> GenerateOutput:
        return GenerateOutput(
            text="up",
            ids=(7, 8),
            logprobs=(-0.5, -0.25),
            versions=(
                VersionSpan(version=self.version, start=0, end=1),
                VersionSpan(version=self.version + 1, start=1, end=2),
            ),
            finish=self.finish,  # type: ignore[arg-type]
        )

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        return GenerateReply(prompt_ids=self.prompt(request), outputs=(self.output(),))


async def play(environment: object, policy: object, **changes: object) -> Trajectory:
    make = lambda: environment  # noqa: E731
    return await play_episode(make, policy, TASK, group(**changes), 1, patience_s=0.5)  # type: ignore[arg-type,return-value]
