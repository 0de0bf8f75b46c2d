"""The local engine on the device: the contract, what it says beside the CPU, and how fast it decodes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.models import SHAPES, device, emptied, llama_folder, peak_gib, smaller, synchronize
from bench.gpu.supervise import ROOT
from services.local_engine.model import Model, load_model
from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits, Scheduler
from services.local_engine.sequence import Sequence

_EXACT, _HALF = 1e-3, 0.15


def _contract(only: str) -> dict[str, Any]:
    """The suite that SGLang passes too, against a server of this tree on this device, in float32."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "default",
        "tests/contract/engine",
    ]
    environ = os.environ | {"LOCAL_ENGINE_DEVICE": device().type, "LOCAL_ENGINE_DTYPE": "float32"}
    command += ["-k", only] if only else []
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
    scheduler, draw = (
        Scheduler(
            model,
            Limits(max_running=requests, max_total_tokens=1 << 20, max_prefill_tokens=8192),
            "0",
        ),
        random.Random(3),
    )
    params = SamplingParams(max_new_tokens=new, temperature=0.0 if greedy else 1.0, ignore_eos=True)
    made = []
    for number in range(requests):
        ids = [draw.randrange(3, model.vocab_size) for _ in range(prompt)]
        made.append(
            Sequence(
                Prompt(ids, params, str(number), return_logprob=True),
                str(number),
                number,
                new,
                frozenset(),
            )
        )
    synchronize()
    started = time.perf_counter()
    scheduler.submit(made)
    while not scheduler.idle:
        scheduler.step()
    synchronize()
    return time.perf_counter() - started, made


def _agree(rehearse: bool) -> dict[str, Any]:
    """Greedy tokens and their log-probabilities: this device in float32 and bfloat16, beside the CPU in float32."""
    shape = SHAPES["tiny"] if rehearse else smaller(SHAPES["0.6B"], 4)
    with tempfile.TemporaryDirectory() as name, emptied():
        folder = llama_folder(Path(name), shape)
        model, _ = load_model(folder)
        wanted = decode(model, 6, 40, 12, greedy=True)[1]
        found: dict[str, Any] = {}
        for dtype, bound in ((torch.float32, _EXACT), (torch.bfloat16, _HALF)):
            model, _ = load_model(folder, device=device(), dtype=dtype)
            rows = decode(model, 6, 40, 12, greedy=True)[1]
            first = [abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(rows, wanted, strict=True)]
            same = sum(a.output == b.output for a, b in zip(rows, wanted, strict=True))
            kind = str(dtype).removeprefix("torch.")
            found |= {f"{kind}_off": max(first), f"{kind}_same": same}
            assert max(first) < bound, (
                f"{kind}: log-probabilities are {max(first):.3g} off, expected under {bound}"
            )
        assert found["float32_same"] == len(wanted), (
            f"float32: {found['float32_same']} of {len(wanted)} outputs are the CPU's"
        )
    return found


def _decode(name: str, requests: int, prompt: int, new: int) -> dict[str, Any]:
    """Sixty-four requests side by side: tokens a second, prompts included in the time."""
    with tempfile.TemporaryDirectory() as scratch, emptied():
        model, _ = load_model(
            llama_folder(Path(scratch), SHAPES[name]), device=device(), dtype=torch.bfloat16
        )
        decode(model, 4, 8, 4)
        seconds, made = decode(model, requests, prompt, new)
        tokens = sum(len(seq.output) for seq in made)
        return {"tokens_per_s": tokens / seconds, "seconds": seconds, "peak_gib": peak_gib()}


def cases(*, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    size = ("tiny", 4, 8, 6) if rehearse else ("0.6B", 64, 256, 256)
    return {
        "agree": partial(_agree, rehearse), f"decode-{size[0]}": partial(_decode, *size),
        "contract": partial(_contract, "refus" if rehearse else ""),
    }  # fmt: skip
