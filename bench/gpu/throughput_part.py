"""What the learner reaches: tokens a second, model-FLOP utilisation and memory, on random weights; the card's own ceilings."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.gpu.models import (
    SHAPES,
    device,
    emptied,
    module,
    peak_gib,
    qwen_folder,
    rows,
    spread,
    synchronize,
)
from bench.gpu.supervise import ROOT, SkipCase
from bench.trainer import batch_of
from services.trainer.distributed import Ranks
from services.trainer.learner import Learner
from services.trainer.lora import AdaptedModel
from services.trainer.model import ScoringModel
from triforge.testing.model_folders import chatml_folder

_SHOWN = (
    "tokens_per_s",
    "mfu",
    "seconds",
    "seconds_forward",
    "seconds_backward",
    "seconds_optimizer",
    "computed_tokens",
)
_NOWHERE = Path("random")


def learner(name: str, *, lora: int = 0) -> Learner:
    """A learner over random weights of a shape, made on the device."""
    model = module(SHAPES[name])
    if not lora:
        return Learner(ScoringModel(model), _NOWHERE, Ranks(device()))
    try:
        peft = importlib.import_module("peft")
    except ImportError as error:
        raise SkipCase(f"peft: {error}") from None
    targets = sorted(
        {
            n.rpartition(".")[2]
            for n, m in model.named_modules()
            if isinstance(m, nn.Linear) and ".layers." in n
        }
    )
    config = peft.LoraConfig(
        r=lora,
        lora_alpha=2 * lora,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    peft.inject_adapter_in_model(config, model)
    return Learner(AdaptedModel(model.to(device()), _NOWHERE, {}), _NOWHERE, Ranks(device()))


def figures(
    held: Learner, given: list[dict[str, Any]], budget: int, **options: Any
) -> dict[str, Any]:
    """Of the third of three equal updates."""
    batch = batch_of(given, _NOWHERE, token_budget=budget, **options)
    for _ in range(3):
        metrics = held.train(*batch).metrics
    return {n: metrics[n] for n in _SHOWN if n in metrics} | {
        "packs": held.model.packs,
        "peak_gib": peak_gib(),
    }


def _update(name: str, lora: int, tokens: int, recompute: bool) -> dict[str, Any]:
    """An update of rows that fill two packed forward passes."""
    with emptied():
        given = rows(spread(tokens), SHAPES[name].vocabulary)
        options = {"activation_checkpointing": recompute, "lora_rank": lora}
        return figures(learner(name, lora=lora), given, tokens, **options)


def _ceilings(size: int) -> dict[str, Any]:
    """A large bfloat16 matrix product and a large copy: what this card does at most."""
    a, b = (torch.randn(size, size, device=device(), dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(size, 16 * size, device=device())
    target = torch.empty_like(source)
    best: dict[str, float] = {}
    works: dict[str, Callable[[], object]] = {
        "product": lambda: a @ b,
        "copy": lambda: target.copy_(source),
    }
    for name, work in works.items():
        for _ in range(8):
            synchronize()
            started = time.perf_counter()
            work()
            synchronize()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - started)
    return {
        "bf16_tflops": 2.0 * size**3 / best["product"] / 1e12,
        "copy_gb_s": 2.0 * source.nbytes / best["copy"] / 1e9,
    }


def _trl(name: str, tokens: int) -> dict[str, Any]:
    """The same rows by TRL's GRPOTrainer, eight to a pass, in a process of its own."""
    if importlib.util.find_spec("trl") is None:
        raise SkipCase("trl is not importable (--pack carries it)")
    with tempfile.TemporaryDirectory() as scratch, emptied():
        folder = qwen_folder(chatml_folder(Path(scratch, "model")), SHAPES[name])
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "qwen3"
        work = Path(scratch, "work.json")
        given = rows(spread(tokens), SHAPES[name].vocabulary)
        work.write_text(json.dumps({"model": str(folder), "rows": given}))
        command = [
            sys.executable,
            str(ROOT / "bench/trainer_trl.py"),
            str(work),
            "1",
            device().type,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, (
            f"TRL: {(done.stderr.strip().splitlines() or ['no word'])[-1][:300]}"
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def cases(*, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    if rehearse:
        plan = [("tiny", 0, 256, False), ("tiny", 16, 256, True)]
    else:  # without recomputing, activations of larger ones do not fit beside the optimiser's state
        plan = [
            ("0.6B", 0, 16384, False), ("0.6B", 16, 16384, False), ("0.6B", 0, 65536, True), ("0.6B", 16, 65536, True),
            ("1.7B", 0, 16384, True), ("1.7B", 16, 16384, True), ("1.7B", 0, 65536, True),
            ("4B", 16, 16384, True), ("4B", 0, 16384, True), ("4B", 16, 65536, True),
        ]  # fmt: skip
    small = plan[0][0]
    found: dict[str, Callable[[], dict[str, Any]]] = {
        "ceilings": partial(_ceilings, 128 if rehearse else 8192)
    }
    for name, lora, tokens, recompute in plan:
        kind = f"lora-{lora}" if lora else "full"
        label = f"{name}-{kind}-{tokens}{'-recompute' if recompute else ''}"
        found[label] = partial(_update, name, lora, tokens, recompute)
    return found | {f"trl-{small}-full": partial(_trl, small, plan[0][2])}
