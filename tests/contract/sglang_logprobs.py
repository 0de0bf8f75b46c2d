"""The trainer's log-probabilities and those of a real SGLang for SmolLM2-135M-Instruct, in float32.

Part of `make conformance` and not of `make test`, since the model is to be read for it. SGLang's are recorded with four decimals, so half of the last one is the precision of the comparison.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from demo.models.smollm2 import NAME, default_cache
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Sequences

RECORDED = Path(__file__).parent / "sglang"
FOLDER = default_cache() / NAME
SEEN = 5e-5  # half of the last decimal
CLOSE = 1e-5  # on top of it


@pytest.mark.skipif(
    not (FOLDER / "config.json").is_file(),
    reason=f"{FOLDER} is not there; python -m demo.models smollm2",
)
def test_the_trainer_finds_what_sglang_reported() -> None:
    model = ScoringModel.load(FOLDER)
    differences: list[float] = []
    for name in ("generate_ids", "generate_scored"):
        exchange = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        recorded = exchange["reply"]["meta_info"]
        prompt, answer = exchange["request"]["input_ids"], exchange["reply"]["output_ids"]
        scored = [p for p, _, _ in recorded["input_token_logprobs"] if p is not None]
        scored += [p for p, _, _ in recorded["output_token_logprobs"]]
        ids = np.asarray(prompt + answer)
        row = Sequences([ids], [np.arange(len(ids) - len(scored), len(ids))])
        with torch.no_grad():
            found, _ = model.score(model.batch(row, [0]), 1.0)
        differences += (found - torch.tensor(scored)).abs().tolist()
    assert len(differences) == 11
    assert max(differences) < SEEN + CLOSE
