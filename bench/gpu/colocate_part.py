"""Engine and learner take turns on one card, in one process, as `run.colocate` has them: a cycle, compared with playing and training alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from bench.gpu.device import DEVICE, GPU, free, timed
from bench.gpu.engine_part import decode, scheduler_of
from bench.gpu.models import SHAPES, llama_shape, module, rows, spread
from bench.trainer import batch_of
from services.local_engine.llama import LlamaModel
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.weights.tensors import model_tensors

_PROBE = "model.layers.0.mlp.down_proj.weight"


def _cycle(name: str, requests: int, new: int, tokens: int, cycles: int, _: Path) -> dict[str, Any]:
    """Play, release the engine, take the learner back, train, release the learner, take the engine back, hand over."""
    shape, nowhere = SHAPES[name], Path("random")
    learner = Learner(ScoringModel(module(shape, kind=LlamaConfig)), nowhere, Ranks(DEVICE))
    batch = batch_of(rows(spread(tokens), shape.vocabulary), nowhere, token_budget=tokens)
    with DEVICE:
        model = LlamaModel(llama_shape(shape), torch.bfloat16)
    engine = scheduler_of(model, requests)
    took: dict[str, float] = {}
    held: dict[str, float] = {}

    def published() -> dict[str, torch.Tensor]:
        """As they lie in a version's folder."""
        found, wanted = model_tensors(learner.model.module), model.shapes()
        return {n: t.to("cpu", torch.bfloat16) for n, t in found.items() if n in wanted}

    learner.train(*batch)  # so that the optimiser has its state
    weights = published()
    engine.swap(weights, "0")
    learner.release_memory()
    free()
    for number in range(cycles):  # the last one counts
        with timed(took, "play_s"):
            played = decode(engine, requests, 64, new)
        held["play_gib"] = torch.cuda.memory_reserved() / 2**30 if GPU else 0.0
        with timed(took, "release_engine_s"):
            engine.release()
        with timed(took, "take_learner_s"):
            learner.resume_memory()
        with timed(took, "train_s"):
            learner.train(*batch)
        held["train_gib"] = torch.cuda.memory_reserved() / 2**30 if GPU else 0.0
        with timed(took, "publish_s"):
            weights = published()
        with timed(took, "release_learner_s"):
            learner.release_memory()
            free()
        with timed(took, "take_engine_s"):
            engine.resume()
        with timed(took, "hand_over_s"):
            engine.swap(weights, str(number))
    assert torch.equal(model.tensor(_PROBE).cpu(), weights[_PROBE]), "the engine has other weights"
    cycle, sampled = sum(took.values()), sum(len(seq.output) for seq in played)
    return took | held | {
        "cycle_s": cycle, "moving_s": cycle - took["play_s"] - took["train_s"],
        "sampled_tokens_per_s": sampled / took["play_s"], "sampled_tokens_per_s_of_cycle": sampled / cycle,
        "trained_tokens_per_s": 2 * tokens / took["train_s"], "trained_tokens_per_s_of_cycle": 2 * tokens / cycle,
    }  # fmt: skip


CASES = {"0.6B": partial(_cycle, "0.6B", 64, 128, 16384, 3)}
REHEARSAL = {"tiny": partial(_cycle, "tiny", 4, 6, 256, 2)}
