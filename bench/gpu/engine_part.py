"""The local engine on the device: the contract, what it says beside the CPU, and how fast it decodes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.device import DEVICE, emptied, synchronize
from bench.gpu.models import SHAPES, Shape, llama_folder, smaller
from bench.gpu.supervise import ROOT
from services.local_engine.model import Model, load_model
from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence

_BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.15}


def _contract(only: list[str], _: Path) -> dict[str, Any]:
    """The suite that SGLang passes too, against a server of this tree on this device, in float32."""
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


def decode(
    model: Model, requests: int, prompt: int, new: int, *, greedy: bool = False
) -> tuple[float, list[Sequence]]:
    """Seconds and sequences of so many requests side by side."""
    limits = Limits(max_running=requests, max_total_tokens=1 << 20, max_prefill_tokens=8192)
    scheduler, draw, made = Scheduler(model, limits, "0"), random.Random(3), []
    params = SamplingParams(max_new_tokens=new, temperature=0.0 if greedy else 1.0, ignore_eos=True)
    for number in range(requests):
        ids = [draw.randrange(3, model.vocab_size) for _ in range(prompt)]
        asked = Prompt(ids, params, str(number), return_logprob=True)
        made.append(Sequence(asked, str(number), number, new, frozenset()))
    synchronize()
    started = time.perf_counter()
    scheduler.submit(made)
    while not scheduler.idle:
        scheduler.step()
    synchronize()
    return time.perf_counter() - started, made


def _agree(shape: Shape, scratch: Path) -> dict[str, Any]:
    """Greedy tokens and their log-probabilities: this device in float32 and bfloat16, beside the CPU in float32."""
    folder = llama_folder(scratch, shape)
    wanted = decode(load_model(folder)[0], 6, 40, 12, greedy=True)[1]
    found: dict[str, Any] = {}
    for dtype, bound in _BOUNDS.items():
        with emptied():
            model, _ = load_model(folder, device=DEVICE, dtype=dtype)
            rows = decode(model, 6, 40, 12, greedy=True)[1]
        off = max(abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(rows, wanted, strict=True))
        same = sum(a.output == b.output for a, b in zip(rows, wanted, strict=True))
        kind = str(dtype).removeprefix("torch.")
        found |= {f"{kind}_off": off, f"{kind}_same": same}
        assert off < bound, f"{kind}: log-probabilities are {off:.3g} off, expected under {bound}"
    same = found["float32_same"]
    assert same == len(wanted), f"float32: {same} of {len(wanted)} outputs are the CPU's"
    return found


def _decode(name: str, requests: int, prompt: int, new: int, scratch: Path) -> dict[str, Any]:
    """Requests side by side, sixty-four on a GPU: tokens a second, prompts included in the time."""
    folder = llama_folder(scratch, SHAPES[name])
    model, _ = load_model(folder, device=DEVICE, dtype=torch.bfloat16)
    decode(model, 4, 8, 4)
    seconds, made = decode(model, requests, prompt, new)
    return {"tokens_per_s": sum(len(seq.output) for seq in made) / seconds, "seconds": seconds}


CASES = {
    "agree": partial(_agree, smaller(SHAPES["0.6B"], 4)),
    "decode-0.6B": partial(_decode, "0.6B", 64, 256, 256),
    "contract": partial(_contract, []),
}
REHEARSAL = {
    "agree": partial(_agree, SHAPES["tiny"]),
    "decode-tiny": partial(_decode, "tiny", 4, 8, 6),
    "contract": partial(_contract, ["-k", "refus"]),
}
