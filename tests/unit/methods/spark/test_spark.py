"""SPARK's questions about finished rollouts: their texts, their verification, and that they teach the weights that play."""

from __future__ import annotations

from typing import Any

import pytest

from methods.spark.environment import environment
from methods.spark.loop import judge_measures, question_measures, question_of
from methods.spark.questions import KINDS, Question
from tests.unit.methods.spark.letters import (
    Judge,
    Letter,
    config,
    play,
    played,
    questions,
    samples_of,
    trained,
)
from tests.unit.rollout.counting import TASK as COUNT
from triforge.config import merge, parse
from triforge.environments.trainable import demand_known_success
from triforge.errors import ConfigError
from triforge.types import GroupTask, Outcome

TASK = COUNT.model_copy(update={"id": "1"})


async def judging(policy: Judge) -> float:
    """Balanced accuracy on held-out answers that another gave."""
    asked: list[GroupTask] = []
    for number in range(40):
        found = await played(Judge(), 5_000 + number, rollouts=1, purpose="evaluate")
        asked += questions(found, number)
    assert {(one.purpose, one.rollouts) for one in asked} == {("evaluate", 1)}
    return judge_measures([await play(policy, one) for one in asked])["eval/judge_balanced"]


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
    asked = questions(groups, 1)
    assert {one.purpose for one in asked} == {"method"}
    assert questions(groups, 1) == asked
    answered = [await play(Judge(), one) for one in asked]
    assert questions(groups + answered, 1) == asked
    assert questions(answered, 1) == []
    found = question_measures(groups + answered)
    assert sum(found.get(f"recycled/{kind}", 0.0) for kind in KINDS) == len(asked)
    assert 0.0 < found["recycled/reflection/right"] < 1.0


async def test_a_question_shows_the_answer_and_neither_outcome_nor_what_followed() -> None:
    asked = questions(await played(Judge(), 1), 1)
    texts = {q.kind: q.text for q in map(question_of, asked) if q}
    assert set(texts) == set(KINDS)
    for kind, text in texts.items():
        assert not {"right", "wrong"} & {line.removeprefix("| ") for line in text.splitlines()}
        assert text.count("\nAttempt") == {"pointwise": 1, "pairwise": 2, "reflection": 0}[kind]
    short = questions(await played(Judge(), 1), 1, reward={"prompt": "terse"})
    for one in short:
        question = question_of(one)
        assert question
        assert question.text.count(">") == {"pairwise": 2}.get(question.kind, 1)


async def test_a_verdict_is_held_against_the_outcome_and_an_attempt_is_made_again() -> None:
    for verdict, response, won in (
        (1, r"\boxed{1}", True),
        (-1, r"\boxed{1}", False),
        (-1, "no", False),
    ):
        judge = environment(
            Question(kind="pointwise", text="is it?", verdict=verdict).model_dump(), Letter
        )
        assert (await judge.reset(TASK, seed=1)).observation.text == "is it?"
        assert (await judge.step(response)).success is won
    again = environment(Question(kind="reflection", text=" not a", verdict=0).model_dump(), Letter)
    assert (await again.reset(TASK, seed=1)).observation.text == "question 1 not a"
    assert (await again.step("b")).success


async def test_what_a_policy_says_of_itself_is_no_reward_of_what_it_is_about() -> None:
    groups = await played(Judge(), 1)
    asked = [await play(Judge(), one) for one in questions(groups, 1)]
    alone, both = samples_of(groups), samples_of(groups + asked)
    advantages = [(r["trajectory_id"], r["advantage"]) for r in both.records]
    assert advantages[: len(alone.records)] == [
        (r["trajectory_id"], r["advantage"]) for r in alone.records
    ]


SPARK: dict[str, Any] = {
    "methods": {"spark": {}},
    "algorithm": {"preset": "spark"},
    "adaptation": {"controller": "none"},
}


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"algorithm": {"preset": "rlanything"}}, "'rlanything' with methods.spark, allowed only outcomes alone"),
        ({"algorithm": {"overrides": {"use_votes": True}}}, "would learn to please its own verdict"),
        ({"algorithm": {"overrides": {"train_reward_model": True}}}, "there is no other reward model to train"),
        ({"env_adapter": {"played_by": "sessions"}}, "agents of yours answer no questions"),
        (
            {"env_adapter": {"strategy": "at_grpo"}, "algorithm": {"preset": "at_grpo"}},
            "candidates of a tree are no attempts that succeeded or failed",
        ),
        ({"models": {"mover": {"agents": ["mover"]}}}, "models.mover: given with methods.spark"),
        ({"models": {"second": {"judges": ["mover"]}}}, "models.second: given with methods.spark"),
    ],
)  # fmt: skip
def test_a_policy_that_judges_itself_is_rewarded_by_outcomes_alone(
    over: dict[str, Any], sentence: str
) -> None:
    config = parse(SPARK)
    assert (config.trained, config.votes) == (("policy",), 0)
    with pytest.raises(ConfigError, match=sentence):
        parse(merge(SPARK, over))


async def test_scores_without_a_threshold_give_no_verdict() -> None:
    (first, *_) = await played(Judge(), 1)
    unknown = first.played.trajectories[0].model_copy(
        update={"outcome": Outcome(value=None, score=0.5)}
    )
    scored = first.model_copy(
        update={"played": first.played.model_copy(update={"trajectories": (unknown,)})}
    )
    with pytest.raises(ConfigError, match=r"methods\.spark"):
        demand_known_success(config(), [scored])
