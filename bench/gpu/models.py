"""Models with random weights, made on the device: how long a step takes does not depend on what weights say."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from bench.gpu.device import DEVICE
from services.local_engine.llama import LlamaModel, LlamaShape
from triforge.store.manifests import write_manifest
from triforge.testing.model_folders import chatml_folder


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model; those of the Qwen3 of the same name."""

    layers: int
    hidden: int
    inner: int
    heads: int
    groups: int = 8
    width: int = 128
    vocabulary: int = 151_936
    tied: bool = True

    def config(self, kind: Any = Qwen3Config) -> Any:
        """As transformers has it."""
        return kind(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.inner,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.groups,
            head_dim=self.width, max_position_embeddings=131_072, tie_word_embeddings=self.tied,
            bos_token_id=1, eos_token_id=2, pad_token_id=2,
        )  # fmt: skip


SHAPES = {
    "tiny": Shape(layers=2, hidden=64, inner=128, heads=4, groups=2, width=16, vocabulary=1000),
    "tinier": Shape(layers=1, hidden=64, inner=128, heads=4, groups=2, width=16, vocabulary=1000),
    "0.6B": Shape(layers=28, hidden=1024, inner=3072, heads=16),
    "1.7B": Shape(layers=28, hidden=2048, inner=6144, heads=16),
    "4B": Shape(layers=36, hidden=2560, inner=9728, heads=32),
    "8B": Shape(layers=36, hidden=4096, inner=12288, heads=32, tied=False),
}


def module(shape: Shape, *, kind: Any = Qwen3Config, seed: int = 1) -> Any:
    """Return a model in float32 with random weights on the device."""
    with torch.random.fork_rng(), DEVICE:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(
            shape.config(kind), dtype=torch.float32, trust_remote_code=False
        )


def qwen_folder(folder: Path, shape: Shape, *, seed: int = 1) -> Path:
    module(shape, seed=seed).save_pretrained(folder)
    return folder


def llama_shape(shape: Shape) -> LlamaShape:
    """Return the local engine's shape of a Llama of these sizes."""
    found = LlamaShape.from_config(shape.config(LlamaConfig).to_dict())
    assert found is not None
    return found


def tensor_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and sizes of its tensors."""
    with torch.device("meta"):
        return LlamaModel(llama_shape(shape)).shapes()


def llama_folder(folder: Path, shape: Shape, *, scale: float = 1.0) -> Path:
    """Write a Llama of these sizes as a learner publishes it: one file in float32, a tokenizer, a manifest.

    Folders of one shape have the same weights but for the last norm, which is `scale`.
    """
    chatml_folder(folder)
    config = shape.config(LlamaConfig).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    draw = torch.Generator(DEVICE).manual_seed(7)
    tensors = {}
    for name, size in tensor_sizes(shape).items():
        if len(size) == 1:
            tensors[name] = torch.ones(size) * (scale if name == "model.norm.weight" else 1.0)
            continue
        made = torch.empty(size, device=DEVICE).normal_(0.0, 0.05, generator=draw)
        tensors[name] = made.cpu()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_manifest(folder, {})
    return folder


def rows(
    lengths: list[tuple[int, int]], vocabulary: int, *, prefixes: list[list[int]] | None = None
) -> list[dict[str, Any]]:
    """Rows of (prompt, answer) lengths as `bench.trainer.batch_of` takes them; prompts begin as `prefixes` say."""
    draw, most = random.Random(5), min(vocabulary, 40_000)
    found = []
    for number, (before, own) in enumerate(lengths):
        given = (prefixes[number] if prefixes else [])[:before]
        prompt = given + [draw.randrange(3, most) for _ in range(before - len(given))]
        answer = [draw.randrange(3, most) for _ in range(own)]
        found.append({"prompt": prompt, "completion": answer, "advantage": draw.gauss(0, 1)})
    return found


def spread(tokens: int) -> list[tuple[int, int]]:
    """Lengths of rows that fill two forward passes of so many tokens, half of each row an answer; as `bench.trainer`."""
    draw, left, found = random.Random(1), 2 * tokens, []
    while left > 0:
        size = max(4, min(left, draw.randint(tokens // 16, tokens // 4)))
        found.append((size // 2, size - size // 2))
        left -= size
    return found


def smaller(shape: Shape, layers: int) -> Shape:
    return replace(shape, layers=layers)
