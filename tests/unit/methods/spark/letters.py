"""SPARK with one number a question and letter: answers are drawn by it, and so are verdicts on answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from methods.spark.loop import question_tasks
from methods.spark.options import SparkOptions
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from triforge.algorithms.algorithm import resolve
from triforge.config import RunConfig, parse
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
