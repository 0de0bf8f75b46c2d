"""The sizes of a decoder, from its `config.json` and, where its weights are there, from their headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from triforge.chat_template import read_json
from triforge.errors import ConfigError
from triforge.store.tensor_files import read_folder

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LONGEST: Final = 32_768  # context of a config that names none


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder with gated feed-forward layers, as Llama, Mistral and Qwen are."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False
    normed_heads: bool = False  # queries and keys are normalised, as in Qwen3
    longest: int = _LONGEST  # tokens of the context
    numbers: int = 0  # all weights, if the files say

    @staticmethod
    def of_config(config: Mapping[str, Any], where: str, numbers: int = 0) -> ModelShape:
        """Read off a `config.json`. ConfigError: a size is missing, or it has experts."""
        text = config.get("text_config") or config
        if experts := next((name for name in _EXPERTS if text.get(name)), ""):
            raise ConfigError(
                f"{where}: given {experts} = {text[experts]}, expected a dense model: the plan has no arithmetic for experts"
            )
        try:
            hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
            return ModelShape(
                layers=int(text["num_hidden_layers"]),
                hidden=hidden,
                inner=int(text["intermediate_size"]),
                heads=heads,
                key_heads=int(text.get("num_key_value_heads") or heads),
                head_dim=int(text.get("head_dim") or hidden // heads),
                vocabulary=int(text["vocab_size"]),
                tied=bool(
                    config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
                ),
                normed_heads=str(text.get("model_type", "")).startswith("qwen3"),
                longest=int(text.get("max_position_embeddings") or _LONGEST),
                numbers=numbers,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(
                f"{where}: cannot be planned ({type(error).__name__}: {error}), expected hidden_size, intermediate_size, "
                "num_hidden_layers, num_attention_heads and vocab_size of a decoder"
            ) from None

    @staticmethod
    def of_folder(folder: Path) -> ModelShape:
        """Read a model folder; its weights need not be there. ConfigError or WeightsError: it cannot be read."""
        numbers = sum(math.prod(entry.shape) for entry in read_folder(folder).values())
        return ModelShape.of_config(read_json(folder / "config.json"), str(folder), numbers)

    @property
    def queries(self) -> int:
        """Width of all heads of a layer."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all keys of a layer; values have the same."""
        return self.key_heads * self.head_dim

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by name: inputs and outputs."""
        d, q, k, f = self.hidden, self.queries, self.keys, self.inner
        sizes = ((d, q), (d, k), (d, k), (q, d), (d, f), (d, f), (f, d))
        return dict(zip(LINEAR, sizes, strict=True))

    @property
    def block(self) -> int:
        """Weights of one layer's matrices; its norms and biases are too few to count."""
        return sum(a * b for a, b in self.linear.values())

    @property
    def embedding(self) -> int:
        """Weights of the embedding; an output layer that is not tied to it has as many."""
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """All weights."""
        return self.numbers or self.layers * self.block + self.embedding * (2 - self.tied)
