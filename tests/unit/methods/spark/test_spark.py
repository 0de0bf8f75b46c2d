"""SPARK's questions about finished rollouts: their texts, their verification, and that they teach the weights that play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from methods.spark.environment import environment
from methods.spark.loop import judge_measures, question_measures, question_of, question_tasks
from methods.spark.options import SparkOptions
from methods.spark.questions import KINDS, Question
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from tests.unit.rollout.counting import TASK as COUNT
from triforge.algorithms.algorithm import resolve
from triforge.config import RunConfig, merge, parse
from triforge.environments.trainable import demand_known_success
from triforge.errors import ConfigError
from triforge.rollout.episode import run_group
from triforge.rollout.live import environment_of
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.rollout.verdicts import ANSWERS
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    JudgedGroup,
    Outcome,
    Sampling,
    Task,
    TrainRow,
    VersionSpan,
)

Floats = npt.NDArray[np.float64]
QUESTIONS, LETTERS = 6, "abcdefgh"
WORDS = (*LETTERS, *ANSWERS.values())


def config(**changes: Any) -> RunConfig:
    """Return a run by the preset `spark`."""
    given = {"algorithm": {"preset": "spark"}, "adaptation": {"controller": "none"}}
    return parse(given | changes)


def questions(groups: Sequence[JudgedGroup], step: int, **changes: Any) -> list[GroupTask]:
    """Return the questions about these groups."""
    return question_tasks(groups, config(**changes), SparkOptions(), step)


class Letter:
    """Question n is answered by its letter."""

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Ask."""
        self.right = LETTERS[int(task.id) % len(LETTERS)]
        return Reset(observation=Observation(text=f"question {task.id}"))

    async def step(self, response: str) -> StepResult:
        """Hold the letter against the right one."""
        return StepResult(
            observation=Observation(text="right" if response == self.right else "wrong"),
            action=response,
            action_valid=True,
            done=True,
            success=response == self.right,
        )

    async def close(self) -> None:
        """Nothing is open."""


class Judge:
    """One number a question and letter, how right it seems: answers are drawn by it, and so are verdicts."""

    def __init__(self) -> None:
        self.weights = np.zeros(QUESTIONS * len(LETTERS) + 1)
        self.rows: list[Floats] = []  # features [words, weights] of each prompt
        self.seen: list[str] = []

    def features(self, text: str) -> Floats:
        """Return the features of each word after a prompt, [words, weights]: a verdict of +1 is as likely as the first shown answer seems right."""
        lines = [line.removeprefix("| ") for line in text.splitlines()]
        first = int(next(line for line in lines if line.startswith("question")).split()[1])
        shown = [line for line in lines if line and line in LETTERS]
        found = np.zeros((len(WORDS), len(self.weights)))
        own = first * len(LETTERS)
        if not text.startswith("Lines"):  # to answer, perhaps after a failed attempt
            found[: len(LETTERS), own : own + len(LETTERS)] = np.eye(len(LETTERS))
            for letter in shown:
                found[LETTERS.index(letter), -1] = 1.0
        else:
            for letter, side in zip(shown, (1.0, -1.0), strict=False):
                found[len(LETTERS), own + LETTERS.index(letter)] = side
        return found

    def chances(self, prompt: int) -> Floats:
        """Return the probability of each word: letters where an answer is asked for, else verdicts."""
        rows = self.rows[prompt]
        logits = rows @ self.weights
        judges = self.seen[prompt].startswith("Lines")
        allowed = np.array([(word not in LETTERS) is judges for word in WORDS])
        shares = np.where(allowed, np.exp(logits - logits.max()), 0.0)
        return np.asarray(shares / shares.sum())

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample by the request's seed."""
        self.seen.append(request.messages[-1].text)
        self.rows.append(self.features(self.seen[-1]))
        chances = self.chances(prompt := len(self.rows) - 1)
        drawn = int(np.random.default_rng(request.sampling.seed).choice(len(WORDS), p=chances))
        output = GenerateOutput(
            text=WORDS[drawn], ids=(drawn,), logprobs=(float(np.log(chances[drawn])),),
            versions=(VersionSpan(version=1, start=0, end=1),), finish="stop",
        )  # fmt: skip
        return GenerateReply(prompt_ids=(prompt,), outputs=(output,))

    def learn(self, rows: Sequence[TrainRow], rate: float = 0.3) -> None:
        """Take a step of policy gradient."""
        step = np.zeros_like(self.weights)
        for row in rows:
            prompt, word = row.ids
            features = self.rows[prompt]
            step += row.advantages[1] * (features[word] - self.chances(prompt) @ features)
        self.weights += rate * step


async def play(policy: Judge, asked: GroupTask) -> JudgedGroup:
    """Play a question, or a question about rollouts of one."""
    task = Task(id=asked.task_id, pool_id="p", slot="s", family="f", instruction="answer")
    played = await run_group(lambda: environment_of(asked, Letter), policy, task, asked)
    return JudgedGroup(played=played, votes=(None,) * asked.rollouts)


async def played(policy: Judge, number: int, **how: Any) -> list[JudgedGroup]:
    """Return a group of each question."""
    given: dict[str, Any] = {
        "purpose": "train",
        "rollouts": 4,
        "sampling": Sampling(max_new_tokens=4),
    }
    tasks = [
        GroupTask(
            group_id=f"g{number}-{n}", run_id="toy", step=0, task_id=str(n), seed=100 * number + n, **given | how,
        )
        for n in range(QUESTIONS)
    ]  # fmt: skip
    return [await play(policy, task) for task in tasks]


def samples_of(groups: Sequence[JudgedGroup]) -> Samples:
    """Return what is trained on."""
    everything = Limits(max_tokens=99, max_rows=0, response=1)
    options = SampleOptions(
        algorithm=resolve("spark"), players={"policy": (1, everything)}, judging={"reward": (1, everything)},
        seed=1,
    )  # fmt: skip
    return build_samples(groups, options)


def success(groups: Sequence[JudgedGroup]) -> float:
    """Share of rollouts."""
    values = [t.outcome.value for g in groups for t in g.played.trajectories]
    return values.count(1) / len(values)


async def trained(mode: str, seed: int, steps: int) -> AsyncIterator[tuple[Judge, float]]:
    """Yield the policy and its success after each update, of episodes that train nothing."""
    policy = Judge()
    for number in range(1_000 * seed, 1_000 * seed + steps):
        groups = await played(policy, number)
        tasks = questions(groups, number) if mode == "shared" else []
        asked = [await play(policy, one) for one in tasks]
        policy.learn(samples_of(groups + asked).rows["policy"])
        yield policy, success(await played(policy, 9_000_000, rollouts=20, purpose="evaluate"))


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
