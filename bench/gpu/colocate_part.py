"""Engine and learner take turns on one card, in one process: what a cycle costs beside playing and training.

What leaves and comes back is moved by this file: the product's engine and learner do not give memory back yet.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from bench.gpu.device import DEVICE, GPU, free, timed
from bench.gpu.engine_part import decode
from bench.gpu.models import SHAPES, llama_shape, module, rows, spread
from bench.trainer import batch_of
from services.local_engine.llama import LlamaModel
from services.trainer.distributed import Ranks
from services.trainer.learner import Learner
from services.trainer.model import ScoringModel
from services.trainer.weight_tensors import model_tensors

_PROBE = "model.layers.0.mlp.down_proj.weight"


def _move(learner: Learner, target: torch.device) -> None:
    """Weights and the optimiser's state."""
    learner.model.module.to(target)
    for state in learner._optimiser._adamw.state.values():
        for name, value in state.items():
            state[name] = value.to(target)
    free()


def _held_gib() -> float:
    return torch.cuda.memory_reserved() / 2**30 if GPU else 0.0


def _cycle(name: str, requests: int, new: int, tokens: int, cycles: int, _: Path) -> dict[str, Any]:
    """Play, release the engine, take the learner back, train, hand over, release the learner."""
    shape, nowhere, cpu = SHAPES[name], Path("random"), torch.device("cpu")
    learner = Learner(ScoringModel(module(shape, kind=LlamaConfig)), nowhere, Ranks(DEVICE))
    batch = batch_of(rows(spread(tokens), shape.vocabulary), nowhere, token_budget=tokens)
    took: dict[str, float] = {}
    held: dict[str, float] = {}

    def engine() -> LlamaModel:
        with DEVICE:
            made = LlamaModel(llama_shape(shape), torch.bfloat16)
        wanted, _ = made.expected()
        made.apply({n: t for n, t in model_tensors(learner.model.module).items() if n in wanted})
        return made

    acts: LlamaModel | None = engine()
    learner.train(*batch)  # so that the optimiser has its state
    _move(learner, cpu)
    for _ in range(cycles):  # the last one counts
        assert acts is not None
        with timed(took, "play_s"):
            _, played = decode(acts, requests, 64, new)
        held["play_gib"] = _held_gib()
        with timed(took, "release_engine_s"):
            acts = None
            free()
        with timed(took, "take_learner_s"):
            _move(learner, DEVICE)
        with timed(took, "train_s"):
            learner.train(*batch)
        held["train_gib"] = _held_gib()
        with timed(took, "hand_over_s"):
            acts = engine()
        with timed(took, "release_learner_s"):
            _move(learner, cpu)
    assert acts is not None
    trained = model_tensors(learner.model.module)[_PROBE].to(torch.bfloat16)
    same = torch.equal(acts.tensor(_PROBE).cpu(), trained)
    assert same, "the engine has other weights than the learner"
    cycle = sum(took.values())
    sampled = sum(len(seq.output) for seq in played)
    return took | held | {
        "cycle_s": cycle, "moving_s": cycle - took["play_s"] - took["train_s"],
        "sampled_tokens_per_s_of_cycle": sampled / cycle, "trained_tokens_per_s_of_cycle": 2 * tokens / cycle,
    }  # fmt: skip


CASES = {"0.6B": partial(_cycle, "0.6B", 64, 128, 16384, 3)}
REHEARSAL = {"tiny": partial(_cycle, "tiny", 4, 6, 256, 2)}
