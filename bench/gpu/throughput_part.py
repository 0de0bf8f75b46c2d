"""Speed of the learner: tokens a second, model-FLOP utilisation and memory, on random weights."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from bench.gpu.device import DEVICE, free
from bench.gpu.models import SHAPES, module, qwen_folder, rows, spread
from bench.gpu.supervise import ROOT, SkipCase
from bench.trainer import batch_of
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.lora import AdaptedModel
from services.trainer.learner.parallel.ranks import Ranks
from triforge.testing.model_folders import chatml_folder

_SHOWN = (
    "tokens_per_s", "mfu", "seconds", "seconds_forward", "seconds_backward", "seconds_optimizer", "computed_tokens",
)  # fmt: skip
_NOWHERE = Path("random")


def learner(name: str, *, lora: int = 0) -> Learner:
    """Return a learner over random weights of a shape, on the device."""
    model = module(SHAPES[name])
    if not lora:
        return Learner(ScoringModel(model), _NOWHERE, Ranks(DEVICE))
    try:
        peft = importlib.import_module("peft")
    except ImportError as error:
        raise SkipCase(f"peft: {error}") from None
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and ".layers." in n]
    config = peft.LoraConfig(
        r=lora, lora_alpha=2 * lora, target_modules=sorted({n.rpartition(".")[2] for n in linear}), lora_dropout=0.0,
        bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    peft.inject_adapter_in_model(config, model)
    return Learner(AdaptedModel(model.to(DEVICE), _NOWHERE, {}), _NOWHERE, Ranks(DEVICE))


def figures(
    held: Learner, given: list[dict[str, Any]], budget: int, **options: Any
) -> dict[str, Any]:
    """Return the figures of the third of three equal updates."""
    batch = batch_of(given, _NOWHERE, token_budget=budget, **options)
    for _ in range(3):
        metrics = held.train(*batch).metrics
    return {n: metrics[n] for n in _SHOWN if n in metrics} | {"packs": held.model.packs}


def _update(name: str, lora: int, tokens: int, recompute: bool, _: Path) -> dict[str, Any]:
    """Return an update of rows that fill two packed forward passes."""
    given = rows(spread(tokens), SHAPES[name].vocabulary)
    options = {"activation_checkpointing": recompute, "lora_rank": lora}
    return figures(learner(name, lora=lora), given, tokens, **options)


def _trl(name: str, tokens: int, scratch: Path) -> dict[str, Any]:
    """Train the same rows with TRL's GRPOTrainer, eight to a pass, in a process of its own."""
    if importlib.util.find_spec("trl") is None:
        raise SkipCase("trl is not importable (--pack carries it)")
    folder = qwen_folder(chatml_folder(scratch / "model"), SHAPES[name])
    work = scratch / "work.json"
    given = rows(spread(tokens), SHAPES[name].vocabulary)
    work.write_text(json.dumps({"model": str(folder), "rows": given}))
    free()  # TRL is another process
    command = [sys.executable, str(ROOT / "bench/trainer_trl.py"), str(work), "1", DEVICE.type]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["no word"])[-1][:300]
    assert done.returncode == 0, f"TRL: {last}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _updates(plan: list[tuple[str, int, int, bool]]) -> dict[str, Callable[[Path], dict[str, Any]]]:
    return {
        f"{name}-{f'lora-{lora}' if lora else 'full'}-{tokens}{'-recompute' * recompute}": partial(_update, name, lora, tokens, recompute)
        for name, lora, tokens, recompute in plan
    }  # fmt: skip


# Without recomputing, activations of larger ones do not fit next to the optimiser's state.
_PLAN = [
    ("0.6B", 0, 16384, False), ("0.6B", 16, 16384, False), ("0.6B", 0, 65536, True), ("0.6B", 16, 65536, True),
    ("1.7B", 0, 16384, True), ("1.7B", 16, 16384, True), ("1.7B", 0, 65536, True),
    ("4B", 16, 16384, True), ("4B", 0, 16384, True), ("4B", 16, 65536, True),
]  # fmt: skip
CASES = {**_updates(_PLAN), "trl-0.6B-full": partial(_trl, "0.6B", 16384)}
REHEARSAL = {
    **_updates([("tiny", 0, 256, False), ("tiny", 16, 256, True)]),
    "trl-tiny-full": partial(_trl, "tiny", 256),
}
