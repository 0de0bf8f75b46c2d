"""SPARK's questions about finished rollouts: what they say, who verifies them, and that they teach the weights that play."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.toys.letters import Judge, Letter, config, play, played, samples_of, trained
from services.trainer.loop.recycling import judge_of, recycled_measures, recycled_tasks
from tests.unit.rollout.counting import TASK as COUNT
from triforge.algorithms.recycling import KINDS
from triforge.environments.trainable import demand_known_success
from triforge.errors import ConfigError
from triforge.rollout.recycled import asking
from triforge.types import GroupTask, Outcome, Recycled

TASK = COUNT.model_copy(update={"id": "1"})


async def judging(policy: Judge) -> float:
    """Balanced accuracy on held-out answers that another gave."""
    asked: list[GroupTask] = []
    for number in range(40):
        found = await played(Judge(), 5_000 + number, rollouts=1, purpose="evaluate")
        asked += recycled_tasks(found, config(), number, held_out=True)
    assert {(one.purpose, one.rollouts) for one in asked} == {("evaluate", 1)}
    return judge_of([await play(policy, one) for one in asked])["eval/judge_balanced"]


async def test_the_same_weights_learn_to_judge_and_to_answer() -> None:
    before = await judging(Judge())
    for seed in range(2):
        (policy, shared), (_, alone) = [
            [one async for one in trained(mode, seed, 5)][-1] for mode in ("shared", "separate")
        ]
        assert shared > alone + 0.1
        assert await judging(policy) > before + 0.15


async def test_questions_are_about_what_was_played_for_training_and_never_about_questions() -> None:
    groups = await played(Judge(), 1, rollouts=16)
    asked = recycled_tasks(groups, config(), 1)
    assert {one.purpose for one in asked} == {"recycled"}
    assert recycled_tasks(groups, config(), 1) == asked
    answered = [await play(Judge(), one) for one in asked]
    assert recycled_tasks(groups + answered, config(), 1) == asked
    assert recycled_tasks(answered, config(), 1) == []
    assert recycled_tasks(groups, config("separate"), 1) == []
    assert recycled_tasks(await played(Judge(), 1, purpose="evaluate"), config(), 1) == []
    found = recycled_measures(groups + answered)
    assert sum(found.get(f"recycled/{kind}", 0.0) for kind in KINDS) == len(asked)
    assert 0.0 < found["recycled/reflection/right"] < 1.0


async def test_a_question_shows_the_answer_and_neither_outcome_nor_what_followed() -> None:
    asked = recycled_tasks(await played(Judge(), 1), config(), 1)
    texts = {one.recycled.kind: one.recycled.text for one in asked if one.recycled}
    assert set(texts) == set(KINDS)
    for kind, text in texts.items():
        assert not {"right", "wrong"} & {line.removeprefix("| ") for line in text.splitlines()}
        assert text.count("\nAttempt") == {"pointwise": 1, "pairwise": 2, "reflection": 0}[kind]
    terse = config(reward={"mode": "shared", "prompt": "terse"})
    short = recycled_tasks(await played(Judge(), 1), terse, 1)
    for one in short:
        assert one.recycled
        assert one.recycled.text.count(">") == {"pairwise": 2}.get(one.recycled.kind, 1)


async def test_a_verdict_is_held_against_the_outcome_and_an_attempt_is_made_again() -> None:
    for verdict, response, won in (
        (1, r"\boxed{1}", True),
        (-1, r"\boxed{1}", False),
        (-1, "no", False),
    ):
        judge = asking(Recycled(kind="pointwise", text="is it?", verdict=verdict), Letter)
        assert (await judge.reset(TASK, seed=1)).observation.text == "is it?"
        assert (await judge.step(response)).success is won
    again = asking(Recycled(kind="reflection", text=" not a", verdict=0), Letter)
    assert (await again.reset(TASK, seed=1)).observation.text == "question 1 not a"
    assert (await again.step("b")).success


async def test_what_a_policy_says_of_itself_is_no_reward_of_what_it_is_about() -> None:
    groups = await played(Judge(), 1)
    asked = [await play(Judge(), one) for one in recycled_tasks(groups, config(), 1)]
    alone, both = samples_of(groups), samples_of(groups + asked)
    advantages = [(r["trajectory_id"], r["advantage"]) for r in both.records]
    assert advantages[: len(alone.records)] == [
        (r["trajectory_id"], r["advantage"]) for r in alone.records
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"preset": "rlanything"}},
        {"algorithm": {"preset": "grpo", "overrides": {"train_reward_model": True}}},
        {"algorithm": {"preset": "at_grpo"}, "env_adapter": {"strategy": "tree"}},
        {"env_adapter": {"played_by": "sessions"}},
        {"models": {"mover": {"agents": ["mover"]}}},
        {"reward": {"mode": "separate", "recycled": 4}},
    ],
)  # fmt: skip
def test_a_policy_that_would_reward_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"mode"):
        config(**changes)


async def test_scores_without_a_threshold_give_no_verdict() -> None:
    (first, *_) = await played(Judge(), 1)
    told = first.played.trajectories[0].model_copy(
        update={"outcome": Outcome(value=None, score=0.5)}
    )
    scored = first.model_copy(
        update={"played": first.played.model_copy(update={"trajectories": (told,)})}
    )
    with pytest.raises(ConfigError, match=r"reward\.mode = 'shared'"):
        demand_known_success(config(), [scored])
