"""Seconds of a step's phases, at most: every episode has all its steps, each response all its tokens, each observation as many.

Nothing of triforge has been measured on a GPU: a rate is computed from the card's data sheet, or published by others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from triforge.config import RunConfig
from triforge.config.base import Role
from triforge.planning.cards import Speed
from triforge.planning.memory import cache_per_token, engine_weights
from triforge.planning.shapes import ModelShape

_MFU: Final = (
    0.139  # prime-rl: Qwen3-4B, all weights, passes of 16,384 tokens with recomputation, 8 H100
)
_OF_BANDWIDTH: Final = 0.6  # of a card's memory rate, that decoding reaches
_DISK: Final = 1e9  # bytes a second, written or read
_SEQUENCES: Final = 256  # that an engine decodes at once at most
_TURNS: Final = 2  # tokens of an episode for each one sampled


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step: its seconds at most, the rate that they follow from, and whether that is computed or published."""

    name: str
    seconds: float
    rate: str
    mark: Literal["computed", "published"]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a model in a step, on cards of one speed."""

    config: RunConfig
    role: Role
    shape: ModelShape
    speed: Speed

    @property
    def row(self) -> int:
        """Tokens of an episode."""
        sampled = self.config.env_adapter.max_steps * self.config.models.policy.max_new_tokens
        most = min(self.config.learner("policy").max_tokens, self.shape.longest)
        return min(_TURNS * sampled, most)

    @property
    def assumed(self) -> str:
        """The rows of a step, in words."""
        turns = self.config.env_adapter.max_steps
        return f"{self._episodes} rows a step, {turns} turns and {self.row:,} tokens a row"

    @property
    def _episodes(self) -> int:
        return self.config.run.groups_per_step * self.config.env_adapter.rollouts

    def decoding(self, servers: int = 1, parallel: int = 1, together: int = _SEQUENCES) -> Phase:
        """Return its sampling by so many engines, each of so many sequences at once: a token reads weights and caches."""
        config, name = self.config, "play"
        answers = self._episodes * config.env_adapter.max_steps
        if self.role == "rewriter":
            name, answers = "rewrite", config.adaptation.max_pending * config.adaptation.candidates
        elif self.role in config.models.judging:
            name, answers = "judge", answers * config.votes
        tokens = answers * getattr(config.models, self.role).max_new_tokens / servers
        at_once = max(1, min(together, _SEQUENCES, answers // servers))
        cache = at_once * self.row / 2 * cache_per_token(self.shape, parallel)
        read = engine_weights(self.shape, parallel) + cache
        seconds = tokens / at_once * read / (self.speed.bandwidth * _OF_BANDWIDTH)
        rate = f"{_OF_BANDWIDTH:.0%} of its bandwidth"
        return Phase(f"{name} ({self.role})", seconds, rate, "computed")

    def training(self, ranks: int = 1) -> Phase:
        """Return its update: 6 FLOPs a weight and token, 4 with an adapter, and attention (`step_cost`)."""
        section, shape = self.config.learner(self.role), self.shape
        seen = shape.layers * (shape.block + shape.queries * self.row) + shape.embedding
        flops = (4 if section.lora_rank else 6) * seen * self._episodes * self.row * section.epochs
        rate = f"{_MFU:.1%} of its FLOPs (prime-rl, 4B)"
        seconds = flops / (ranks * self.speed.flops * _MFU)
        return Phase(f"train ({self.role})", seconds, rate, "published")

    def publishing(self, checkpoint: float, version: float) -> Phase:
        """Return the writing of a version of so many bytes, the engines' reading, and the checkpoint, unless that is written during the next step."""
        waits = self.config.run.checkpoint_every == 1
        seconds = (checkpoint * waits + 2 * version) / _DISK
        rate = f"{_DISK / 1e9:g} GB/s: version twice{', checkpoint' * waits}"
        return Phase(f"publish ({self.role})", seconds, rate, "computed")
