"""A policy that is a table: a row of logits a prompt, a word a response; it samples by the seed and is trained by rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from triforge.types import GenerateOutput, GenerateReply, GenerateRequest, TrainRow, VersionSpan

_PROMPT = 1000  # id of the first prompt; the ids below are words


class Table:
    """`generate` answers the last message; `learn` takes a step of policy gradient."""

    def __init__(self, words: Sequence[str], *, version: int = 1) -> None:
        self.words, self.version = tuple(words), version
        self.logits: dict[int, npt.NDArray[np.float64]] = {}
        self.requests: list[GenerateRequest] = []
        self._prompts: dict[str, int] = {}

    def probabilities(self, prompt: int) -> npt.NDArray[np.float64]:
        """Return the probability of each word."""
        logits = self.logits.get(prompt, np.zeros(len(self.words)))
        found = np.exp(logits - logits.max())
        return np.asarray(found / found.sum())

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample by the request's seed."""
        self.requests.append(request)
        text = request.messages[-1].text.partition("You are")[2]
        prompt = self._prompts.setdefault(text, _PROMPT + len(self._prompts))
        chances = self.probabilities(prompt)
        drawn = np.random.default_rng(request.sampling.seed).choice(len(chances), p=chances)
        output = GenerateOutput(
            text=self.words[drawn],
            ids=(int(drawn),),
            logprobs=(float(np.log(chances[drawn])),),
            versions=(VersionSpan(version=self.version, start=0, end=1),),
            finish="stop",
        )
        return GenerateReply(prompt_ids=(*request.prefix_ids, prompt), outputs=(output,))

    def learn(self, rows: Sequence[TrainRow], rate: float) -> None:
        """Add `rate * advantage` times the gradient of its log-probability of each trained token."""
        before = {p: self.probabilities(p) for p in self._prompts.values()}
        for row in rows:
            for at, weight in enumerate(row.weights):
                if weight:
                    prompt = row.ids[at - 1]
                    step = -before[prompt]
                    step[row.ids[at]] += 1.0
                    old = self.logits.get(prompt, np.zeros(len(self.words)))
                    self.logits[prompt] = old + rate * row.advantages[at] * step
