"""A tiny language model as a policy: a Llama of the demo's size, from random weights, that reads an observation and says a word."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch.nn.functional import log_softmax
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.toys.episode import Steps

_VOCABULARY = 256
_PIECES = re.compile(r"[A-Za-z]{2,}|\S|\n")  # words, and squares of a grid one by one


class Reader:
    """Its vocabulary is what it has met; what it may say is held to the words that are admissible. Adam, clipped at 1."""

    def __init__(self, seed: int, learning_rate: float = 3e-3) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = LlamaConfig(
                vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, max_position_embeddings=256, tie_word_embeddings=True,
            )  # fmt: skip
            self._model = LlamaForCausalLM(config)
        self._optimiser = torch.optim.Adam(self._model.parameters(), lr=learning_rate)
        self._ids: dict[str, int] = {}
        self._known: dict[tuple[str, tuple[str, ...]], list[float]] = {}

    def reads(self, text: str) -> str:
        """All of it."""
        return text

    def _encode(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.setdefault(piece, len(self._ids) + 1) for piece in pieces]

    def _scores(
        self, states: Sequence[str], words: Sequence[tuple[str, ...]]
    ) -> list[torch.Tensor]:
        """Log-probabilities of the words of each state, padded behind its text."""
        rows = [self._encode(_PIECES.findall(state)) for state in states]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        logits = self._model(input_ids=ids).logits
        return [
            log_softmax(logits[n, len(row) - 1, self._encode(word_scores)], dim=0)
            for n, (row, word_scores) in enumerate(zip(rows, words, strict=True))
        ]

    def chances(self, state: str, words: tuple[str, ...]) -> list[float]:
        """Return the probability of each admissible word, normalised over these words."""
        if (state, words) not in self._known:
            with torch.no_grad():
                (found,) = self._scores([state], [words])
            self._known[state, words] = found.exp().tolist()
        return self._known[state, words]

    def learn(self, steps: Steps, rate: float) -> None:
        """Take a step of Adam."""
        if not steps:
            return
        scores = self._scores(
            [e.states[turn] for e, turn, _ in steps], [e.choices[turn] for e, turn, _ in steps]
        )
        word_scores = [
            a * found[e.choices[turn].index(e.words[turn])]
            for found, (e, turn, a) in zip(scores, steps, strict=True)
        ]
        self._optimiser.zero_grad()
        loss = -rate * torch.stack(word_scores).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimiser.step()
        self._known.clear()
