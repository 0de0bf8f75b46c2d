"""PA-RL in a text environment: a table of logits fetches things in the household, offline and then online, word by word.

Rollouts, records, critic, its choice and its edits are the product's own; a table learns here, not a language model.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from demo.demonstrations import demonstrations
from environments.household.family import FAMILY
from experiments.toys.agents import options
from methods.pa_rl.best_of_k import BestOfK, read_critic
from methods.pa_rl.critic import CriticEnsemble
from methods.pa_rl.learning import ActionCritic
from methods.pa_rl.options import PaRlOptions
from services.trainer.credit.samples import Samples, build_samples
from triforge.config import parse
from triforge.rollout.episode import run_group
from triforge.rollout.protocols import Generate
from triforge.rollout.seeds import derive_seed, sample_seed
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import step_record_name, write_step_records
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    JudgedGroup,
    Params,
    Sampling,
    Task,
    TrainRow,
    VersionSpan,
)

Row = np.ndarray[Any, np.dtype[np.float64]]
_PLAY: Params = {"wording": "terse"}
_GAMES: Params = {"goals": ["place"], "receptacles": [3, 4], "distractors": [1, 2], "lamps": 0.0}
_TASKS, _DATA, _ROUNDS, _RATE, _PROMPT = 4, 4, 6, 1.0, 1000
Chat = list[tuple[str, str]]  # observations and responses
_CONFIG = {
    "env_adapter": {"strategy": "pa_rl", "max_steps": 12},
    "adaptation": {"controller": "none"},
    "algorithm": {"preset": "pa_rl"},
}
CONFIG = parse(_CONFIG)
OPTIONS = PaRlOptions(
    edits=2, members=3, hidden=16, learning_rate=0.01, tau=0.05, batch=64, updates=100, offline_run="data",
    offline_updates=600, gamma=0.9,
)  # fmt: skip
PARAMS = FAMILY.generate(count=_TASKS, seed=5, options=_GAMES)


class Writer:
    """Writes a verb, then a noun: a row of logits for each task, observation and word so far."""

    def __init__(self, shown: Iterable[Chat]) -> None:
        written = [text.split() for chat in shown for _, text in chat]
        self.words = [sorted({pair[place] for pair in written}) for place in (0, 1)]
        self.logits: defaultdict[tuple[int, ...], Row] = defaultdict(lambda: np.zeros(0))
        self.prompts: dict[str, int] = {}

    def chances(self, context: tuple[int, ...]) -> Row:
        """Return the probabilities of the next words: a context of task and observation, and perhaps a verb."""
        if not len(self.logits[context]):
            self.logits[context] = np.zeros(len(self.words[len(context) - 2]))
        found = np.exp(self.logits[context] - self.logits[context].max())
        return np.asarray(found / found.sum())

    def prompt(self, text: str) -> int:
        """Return the id that stands for an observation."""
        return self.prompts.setdefault(text, _PROMPT + len(self.prompts))

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample by the request's seed; what is begun stays."""
        seen = tuple(self.prompt(message.text) for message in request.messages)
        ids = (*request.prefix_ids, *seen)
        head, outputs = ids[len(ids) - request.begun :], []
        last = max(i for i, token in enumerate(ids) if token >= _PROMPT)
        for number in range(request.n):
            rng = np.random.default_rng(sample_seed(request.sampling.seed or 0, number))
            written, logprobs = [*head], list[float]()
            while len(written) < 2:
                chances = self.chances((ids[0], ids[last], *written))
                written.append(int(rng.choice(len(chances), p=chances)))
                logprobs.append(float(np.log(chances[written[-1]])))
            new = tuple(written[len(head) :])
            text = " ".join(self.words[place][word] for place, word in enumerate(written))
            spans = (VersionSpan(version=1, start=0, end=len(new)),)
            outputs.append(
                GenerateOutput(text=text, ids=new, logprobs=tuple(logprobs), versions=spans, finish="stop")
            )  # fmt: skip
        return GenerateReply(prompt_ids=ids, outputs=tuple(outputs))

    def imitate(self, context: tuple[int, ...], word: int, share: float) -> None:
        """Take a step along the gradient of `share * log p(word)`."""
        step = -self.chances(context)
        step[word] += 1.0
        self.logits[context] += share * step

    def learn(self, rows: Sequence[TrainRow]) -> None:
        """Each sampled word of the rows, as much as it is imitated."""
        for row in rows:
            seen = 0
            for at, token in enumerate(row.ids):
                seen = at if token >= _PROMPT else seen
                if row.weights[at]:
                    context = (row.ids[0], *row.ids[seen:at])
                    self.imitate(context, token, _RATE * row.advantages[at])

    def clone(self, shown: Iterable[Chat]) -> None:
        """Imitate demonstrations a little: every word of theirs."""
        for chat in shown:
            seen = [self.prompt(observation) for observation, _ in chat]
            for prompt, (_, written) in zip(seen, chat, strict=True):
                verb, noun = (
                    words.index(w) for words, w in zip(self.words, written.split(), strict=True)
                )
                self.imitate((seen[0], prompt), verb, 0.5)
                self.imitate((seen[0], prompt, verb), noun, 0.5)


def demonstrated(seed: int) -> list[Chat]:
    """Thirty careless demonstrations of each task: a third of the commands are drawn at random."""
    shown = demonstrations(PARAMS * 30, seed=seed, random_rate=0.3)
    texts = [[message["content"] for message in one.messages] for one in shown]
    return [[*zip(row[::2], row[1::2], strict=False)] for row in texts]


async def play(
    policy: Generate, seed: int, step: int, critic: CriticEnsemble | None = None
) -> Samples:
    """Return a group of each task, by the policy or by the critic's choice among what it says, credited."""
    found = []
    for n, params in enumerate(PARAMS):
        written, part = FAMILY.validate(params).instruction, CONFIG.env_adapter
        task = Task(
            id=f"t{n}",
            pool_id="p",
            slot=f"t{n}",
            family="household",
            instruction=written,
            params=params,
        )
        asked = GroupTask(
            group_id=f"{seed}-{step}-{n}", run_id="toy", step=step, task_id=task.id, purpose="train", rollouts=8,
            seed=derive_seed(seed, step, n), sampling=Sampling(max_new_tokens=2), env_adapter=part,
        )  # fmt: skip
        acting = (
            BestOfK(policy, critic, written, OPTIONS.candidates, OPTIONS.edits)
            if critic
            else policy
        )
        played = await run_group(lambda: FAMILY.make(_PLAY), acting, task, asked)
        found.append(JudgedGroup(played=played, votes=(None,) * 8))
    return build_samples(found, options(CONFIG.algorithm.resolved))


async def _success(policy: Generate, seed: int) -> float:
    """Return the success of the policy alone."""
    found = (await play(policy, seed, 1_000)).lines
    return fmean(line["outcome"] == 1 for line in found)


async def _training(seed: int, store: ArtifactStore, *, critic: bool) -> AsyncIterator[float]:
    policy = Writer(shown := demonstrated(seed))
    policy.clone(shown)
    yield await _success(policy, seed)
    for step in range(1, _DATA + 1):  # what the offline run has played
        records = (await play(policy, seed, 100 + step)).records
        write_step_records(store, step_record_name("data", step), records)
    chooses = ActionCritic(store, "toy", CONFIG, OPTIONS)
    chooses.learn(0, [])
    for step in range(1, _ROUNDS + 1):
        found = read_critic(store, "toy", step - 1) if critic else None
        samples = await play(policy, seed, step, found)
        policy.learn(samples.rows["policy"])
        if critic:
            chooses.learn(step, samples.records)
        yield await _success(policy, seed)


def curve(seed: int, *, critic: bool) -> list[float]:
    """Success of the policy alone: cloned, then after each round. Without a critic it imitates the better of what it plays itself."""

    async def found() -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            store = ArtifactStore(folder)
            return [one async for one in _training(seed, store, critic=critic)]

    return asyncio.run(found())
