"""The local engine on the device: the contract suite, and its log-probabilities compared with the CPU's."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.device import DEVICE, emptied
from bench.gpu.models import SHAPES, Shape, llama_folder, smaller
from bench.gpu.supervise import ROOT
from services.local_engine.model import Model, load_model
from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence

_BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.15}


def _contract(only: list[str], _: Path) -> dict[str, Any]:
    """Run the suite that SGLang passes, too, against a server of this tree on this device, in float32."""
    options = ["-q", "-p", "no:cacheprovider", "-W", "default", *only]
    environ = os.environ | {"LOCAL_ENGINE_DEVICE": DEVICE.type, "LOCAL_ENGINE_DTYPE": "float32"}
    command = [sys.executable, "-m", "pytest", *options, "tests/contract/engine"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environ
    )
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]])[-1]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, f"{last}: {', '.join(failed)[:600]}"
    return {"passed": int(re.findall(r"(\d+) passed", last)[0])}


def scheduler_of(model: Model, requests: int) -> Scheduler:
    """Room for so many requests side by side."""
    limits = Limits(max_running=requests, max_total_tokens=1 << 20, max_prefill_tokens=8192)
    return Scheduler(model, limits, "0")


def decode(
    scheduler: Scheduler, requests: int, prompt: int, new: int, temperature: float = 1.0
) -> list[Sequence]:
    """So many random requests side by side, to their end."""
    draw, made = random.Random(3), []
    params = SamplingParams(max_new_tokens=new, temperature=temperature, ignore_eos=True)
    for number in range(requests):
        ids = [draw.randrange(3, scheduler.model.vocab_size) for _ in range(prompt)]
        asked = Prompt(ids, params, str(number), return_logprob=True)
        made.append(Sequence(asked, str(number), number, new, frozenset()))
    scheduler.submit(made)
    while not scheduler.idle:
        scheduler.step()
    return made


def _agree(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Compare greedy tokens and log-probabilities: this device in float32 and bfloat16, the CPU in float32."""
    folder = llama_folder(scratch, shape)

    def sampled_by(**where: Any) -> list[Sequence]:
        return decode(scheduler_of(load_model(folder, **where)[0], 6), 6, 40, 12, temperature=0.0)

    wanted = sampled_by()
    found: dict[str, Any] = {}
    for dtype, bound in _BOUNDS.items():
        with emptied():
            rows = sampled_by(device=DEVICE, dtype=dtype)
        off = max(abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(rows, wanted, strict=True))
        same = sum(a.output == b.output for a, b in zip(rows, wanted, strict=True))
        kind = str(dtype).removeprefix("torch.")
        found |= {f"{kind}_off": off, f"{kind}_same": same}
        assert off < bound, f"{kind}: log-probabilities are {off:.3g} off, expected under {bound}"
    same = found["float32_same"]
    assert same == len(wanted), f"float32: {same} of {len(wanted)} outputs are the CPU's"
    return found


CASES = {
    "agree": partial(_agree, smaller(SHAPES["0.6B"], 4)),
    "contract": partial(_contract, []),
}
REHEARSAL = {
    "agree": partial(_agree, SHAPES["tiny"]),
    "contract": partial(_contract, ["-k", "refus"]),
}
