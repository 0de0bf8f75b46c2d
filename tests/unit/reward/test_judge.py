"""Voting on a trajectory, against a policy service that reads its votes from a list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from services.reward.prompts import Episode, build_prompt
from services.reward.worker import scorer_of
from triforge.errors import ConfigError, InputError, RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    JudgeTask,
    Outcome,
    Player,
    Sampling,
    Segment,
    Step,
    Trajectory,
    TrajectoryVotes,
    VersionSpan,
)

SPAN = (VersionSpan(version=3, start=0, end=1),)


def step(index: int) -> Step:
    return Step(
        index=index, observation=f"o{index}", response=f"a{index}", action=f"a{index}",
        next_observation=f"o{index + 1}", start=0, end=1,
    )  # fmt: skip


TRAJECTORY = Trajectory(
    id="g-00", group_id="g", index=0, task_id="t", task_version=0, instruction="win",
    steps=(step(0), step(1)), segments=(Segment(ids=(1,), logprobs=(0.0,), versions=()),),
    outcome=Outcome(value=1),
)  # fmt: skip


def output(text: str, finish: str = "stop") -> GenerateOutput:
    return GenerateOutput(text=text, ids=(9,), logprobs=(-0.5,), versions=SPAN, finish=finish)  # type: ignore[arg-type]


class Says:
    """Answers the requests with the given texts, one tuple a step; remembers every call."""

    def __init__(self, *texts: tuple[str, ...], finish: str = "stop") -> None:
        self.texts, self.finish = texts, finish
        self.calls: list[list[GenerateRequest]] = []

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        self.calls.append(list(requests))
        return [
            GenerateReply(
                prompt_ids=(5, index), outputs=tuple(output(t, self.finish) for t in texts)
            )
            for index, texts in enumerate(self.texts)
        ]


def judge(
    policy: GenerateMany, *, prompt: str = "terse"
) -> Callable[..., Awaitable[TrajectoryVotes]]:
    async def ask(trajectory: Trajectory, *, votes: int, seed: int) -> TrajectoryVotes:
        task = JudgeTask.model_validate(
            {
                "trajectory_id": trajectory.id, "group_id": trajectory.group_id, "run_id": "r", "votes": votes,
                "seed": seed, "sampling": Sampling(max_new_tokens=9, seed=1), "deadline_s": 9.0, "prompt": prompt,
            }
        )  # fmt: skip
        return await scorer_of("votes")(trajectory, task, policy)

    return ask


async def test_a_trajectory_is_judged_in_one_call_with_one_request_a_step() -> None:
    policy = Says((r"\boxed{1}",) * 2, (r"\boxed{-1}",) * 2)
    await judge(policy)(TRAJECTORY, votes=2, seed=7)
    ((first, second),) = policy.calls
    episode = Episode(instruction="win", steps=TRAJECTORY.steps)
    assert first.messages == build_prompt("terse", episode, 0)
    assert second.messages == build_prompt("terse", episode, 1)
    assert (first.n, second.n) == (2, 2)
    assert (first.affinity, second.affinity) == ("g-00", "g-00")
    assert first.sampling == Sampling(max_new_tokens=9, seed=derive_seed(7, 0))
    assert first.sampling.seed != second.sampling.seed


async def test_each_agents_steps_go_to_the_model_that_judges_it() -> None:
    policy = Says(("",), ("",))
    own = Player(model="second", sampling=Sampling(max_new_tokens=3))
    steps = tuple(step(n).model_copy(update={"agent_id": a}) for n, a in enumerate(("", "mover")))
    task = JudgeTask(
        trajectory_id="g-00", group_id="g", run_id="r", votes=1, seed=7, deadline_s=9.0, prompt="terse",
        sampling=Sampling(max_new_tokens=9), judges={"mover": own},
    )  # fmt: skip
    await scorer_of("votes")(TRAJECTORY.model_copy(update={"steps": steps}), task, policy)
    ((first, second),) = policy.calls
    assert (first.model, first.sampling.max_new_tokens) == ("reward", 9)
    assert (second.model, second.sampling.max_new_tokens) == ("second", 3)


async def test_votes_keep_text_tokens_and_versions_and_share_their_prompt() -> None:
    judged = await judge(Says((r"good \boxed{1}", "hm"), (r"\boxed{-1}", r"\boxed{2}")))(
        TRAJECTORY, votes=2, seed=7
    )
    assert (judged.trajectory_id, judged.group_id, judged.error) == ("g-00", "g", None)
    assert [s.step for s in judged.steps] == [0, 1]
    assert [s.prompt_ids for s in judged.steps] == [(5, 0), (5, 1)]
    assert [[v.value for v in s.votes] for s in judged.steps] == [[1, 0], [-1, 0]]
    vote = judged.steps[0].votes[0]
    assert (vote.text, vote.ids, vote.logprobs) == (r"good \boxed{1}", (9,), (-0.5,))
    assert vote.versions == SPAN


async def test_a_trajectory_without_steps_needs_no_model() -> None:
    policy = Says()
    judged = await judge(policy)(TRAJECTORY.model_copy(update={"steps": ()}), votes=2, seed=7)
    assert judged.steps == ()
    assert policy.calls == []


async def test_an_answer_with_too_few_steps_or_votes_is_refused() -> None:
    with pytest.raises(RewardError, match="votes on 2 steps, got 1"):
        await judge(Says(("x",)))(TRAJECTORY, votes=1, seed=7)
    with pytest.raises(RewardError, match="2 votes on step 1, got 1"):
        await judge(Says(("x", "x"), ("x",)))(TRAJECTORY, votes=2, seed=7)


async def test_a_vote_that_the_engine_aborted_is_not_held_against_the_judge() -> None:
    with pytest.raises(RewardError, match="aborted") as caught:
        await judge(Says(("x",), ("x",), finish="abort"))(TRAJECTORY, votes=1, seed=7)
    assert caught.value.retryable


async def says_good(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """A step scorer of a user."""
    return TrajectoryVotes(trajectory_id=trajectory.id, group_id=trajectory.group_id, steps=())


def test_a_scorer_is_found_by_its_name_or_by_its_path() -> None:
    for kind in ("votes", "shuffled", "oracle", "praise", "log_ratio", "istar", "vlm_rl"):
        assert callable(scorer_of(kind))
    assert scorer_of(f"{__name__}:says_good") is says_good
    for unknown in ("stars", "spark"):
        with pytest.raises(ConfigError, match=r"reward\.kind: given"):
            scorer_of(unknown)


class TakesShort:
    """A policy service whose model takes nothing that shows the second observation."""

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = forbidden

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        for request in requests:
            if any(f in m.content for f in self.forbidden for m in request.messages):
                raise InputError("requests.1: the prompt has 4097 tokens, the model takes 4096")
        vote = output(r"\boxed{1}")
        return [GenerateReply(prompt_ids=(5,), outputs=(vote,)) for _ in requests]


async def test_a_step_that_does_not_fit_costs_only_its_own_votes_unless_none_fits() -> None:
    found = await judge(TakesShort("o2"))(TRAJECTORY, votes=1, seed=0)
    assert [(step.step, [vote.value for vote in step.votes]) for step in found.steps] == [(0, [1])]
    with pytest.raises(InputError, match="4097 tokens"):
        await judge(TakesShort("o1"))(TRAJECTORY, votes=1, seed=0)
