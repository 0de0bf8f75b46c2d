"""The memory model against the tensors of a learner's update on the CPU, and against figures that prime-rl and verl published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.gpu.models import Shape, qwen_folder, rows
from bench.trainer import batch_of
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.lora import LoraShape
from triforge.config import LearnerSection
from triforge.planning.memory import GIB, learner_memory
from triforge.planning.shapes import ModelShape

TOKENS = 1024
WIDE = Shape(layers=3, hidden=256, inner=768, heads=8, groups=4, width=32, vocabulary=2000)
DEEP = Shape(layers=6, hidden=128, inner=512, heads=4, groups=2, width=32, vocabulary=1000, tied=False)  # fmt: skip
QWEN3 = {
    "0.6B": ModelShape(
        layers=28, hidden=1024, inner=3072, heads=16, key_heads=8, head_dim=128, vocabulary=151_936, tied=True, normed_heads=True
    ),
    "1.7B": ModelShape(
        layers=28, hidden=2048, inner=6144, heads=16, key_heads=8, head_dim=128, vocabulary=151_936, tied=True, normed_heads=True
    ),
    "4B": ModelShape(
        layers=36, hidden=2560, inner=9728, heads=32, key_heads=8, head_dim=128, vocabulary=151_936, tied=True, normed_heads=True
    ),
}  # fmt: skip


class Living(TorchDispatchMode):
    """The bytes of all tensors that live at a time, views counted once."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self._note(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note([leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)])
        return result

    def _note(self, tensors: list[torch.Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in tensors):
            self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        if sum(size for _, size in self._held.values()) > self.peak:
            self._held = {key: one for key, one in self._held.items() if not one[0].expired()}
            self.peak = max(self.peak, sum(size for _, size in self._held.values()))


def peak_of(folder: Path, vocabulary: int, **options: Any) -> int:
    """Return the most bytes that the tensors of a step take together; its update has two passes of `TOKENS` tokens each."""
    lora = LoraShape(8, 32) if options.get("lora_rank") else None
    learner = Learner.fresh(folder, shape=lora)
    given = rows([(8, TOKENS // 2 - 8)] * 4, vocabulary)  # nearly all of it is scored
    batch = batch_of(given, folder, token_budget=TOKENS, **options)
    learner.train(*batch)  # makes the optimiser's state
    state = learner._optimiser.tensors().values()
    with Living([*learner.model.module.parameters(), *state]) as living:
        learner.train(*batch)
    return living.peak


@pytest.mark.parametrize("shape", [WIDE, DEEP], ids=["wide", "deep"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_checkpointing": True},
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "activation_checkpointing": True},
        {"lora_rank": 8},
        {"lora_rank": 8, "precision": "bfloat16"},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_model_is_within_a_tenth_of_an_update(
    shape: Shape, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = qwen_folder(tmp_path / "model", shape)
    measured = peak_of(folder, shape.vocabulary, **options)
    section = LearnerSection(token_budget=TOKENS, **options)
    planned = learner_memory(ModelShape.of_folder(folder), section, gpu=False)
    assert planned.total == pytest.approx(measured, rel=0.1)


def test_shape_of_a_folder_counts_as_its_files_do(tmp_path: Path) -> None:
    folder = qwen_folder(tmp_path / "model", WIDE)
    whole = ModelShape.of_folder(folder)
    (folder / "model.safetensors").unlink()
    assert ModelShape.of_folder(folder).weights == pytest.approx(whole.weights, rel=0.01)


@pytest.mark.parametrize(
    ("model", "lora", "tokens", "ranks", "gib"),
    [
        ("0.6B", 0, 16_384, 1, 12.5), ("0.6B", 0, 65_536, 1, 19.6), ("0.6B", 16, 16_384, 1, 5.1), ("0.6B", 16, 65_536, 1, 11.5), ("4B", 0, 16_384, 8, 17.1), ("4B", 0, 65_536, 8, 36.1),
        ("4B", 16, 16_384, 8, 10.3), ("4B", 16, 65_536, 8, 28.8), ("4B", 16, 16_384, 1, 23.3), ("4B", 16, 65_536, 1, 42.0),
    ],
)  # fmt: skip
def test_model_is_near_the_peaks_of_prime_rl(
    model: str, lora: int, tokens: int, ranks: int, gib: float
) -> None:
    """On H100, recomputing (benchmarks/results/BENCHMARKS.md, 2026-02-07), where the residual stream is bfloat16; here it is float32."""
    shape = QWEN3[model]
    section = LearnerSection(token_budget=tokens, lora_rank=lora, activation_checkpointing=True)
    found = learner_memory(shape, section, ranks=ranks).total
    narrower = 2 * tokens * shape.layers * shape.hidden
    assert (found - narrower) / GIB == pytest.approx(gib, rel=0.1)


@pytest.mark.parametrize(
    ("layers", "hidden", "inner", "heads", "cards"),
    [(28, 3584, 18944, 28, 2), (40, 5120, 13824, 40, 4)],
)
def test_state_fits_on_the_smallest_boxes_of_verl(
    layers: int, hidden: int, inner: int, heads: int, cards: int
) -> None:
    """GRPO of all weights on 80 GB each: 2 H800 for 7B and 4 for 14B (docs/perf/device_tuning.rst)."""
    shape = ModelShape(
        layers=layers, hidden=hidden, inner=inner, heads=heads, key_heads=heads // 7, head_dim=128, vocabulary=152_064
    )  # fmt: skip

    def state(ranks: int) -> float:
        found = learner_memory(shape, LearnerSection(token_budget=1024), ranks=ranks)
        return (found.weights + found.gradients + found.optimiser) / GIB

    assert state(cards) < 80 < state(cards // 2)
