"""One update by TRL's GRPOTrainer, for `bench.trainer`. Runs in TRL's own environment and imports nothing of ours.

python trainer_trl.py WORK.json THREADS [cuda]
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if len(sys.argv) < 4 else {})

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

ROWS = 8  # of a forward pass: TRL's default
DEVICE = "cpu" if len(sys.argv) < 4 else sys.argv[3]


def trainer(folder: str, out: str) -> GRPOTrainer:
    args = GRPOConfig(
        output_dir=out, report_to=[], use_cpu=DEVICE == "cpu", bf16=DEVICE != "cpu", disable_dropout=True, beta=0.0,
        per_device_train_batch_size=ROWS, num_generations=ROWS, gradient_accumulation_steps=1,
        gradient_checkpointing=DEVICE != "cpu", max_completion_length=256, loss_type="dapo",
    )  # fmt: skip
    found = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False
        ),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
    )
    found.model.train()
    found.current_gradient_accumulation_steps = 1
    return found


def inputs(rows: list[dict[str, Any]], total: float) -> dict[str, torch.Tensor]:
    """As TRL lays rows out: prompts padded on the left, completions on the right."""
    left = max(len(row["prompt"]) for row in rows)
    right = max(len(row["completion"]) for row in rows)
    front = [[0] * (left - len(row["prompt"])) for row in rows]
    back = [[0] * (right - len(row["completion"])) for row in rows]
    prompts = [gap + row["prompt"] for gap, row in zip(front, rows, strict=True)]
    completions = [row["completion"] + gap for gap, row in zip(back, rows, strict=True)]
    found = {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.tensor([[0] * len(g) + [1] * (left - len(g)) for g in front]),
        "completion_ids": torch.tensor(completions),
        "completion_mask": torch.tensor([[1] * (right - len(g)) + [0] * len(g) for g in back]),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": torch.tensor(total),
    }
    return {name: tensor.to(DEVICE) for name, tensor in found.items()}


def update(asked: GRPOTrainer, adamw: torch.optim.AdamW, rows: list[dict[str, Any]]) -> int:
    """One optimiser step over all rows; returns the cells that were computed."""
    total, cells = float(sum(len(row["completion"]) for row in rows)), 0
    for start in range(0, len(rows), ROWS):
        given = inputs(rows[start : start + ROWS], total)
        cells += given["prompt_ids"].numel() + given["completion_ids"].numel()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE != "cpu"):
            loss = asked._compute_loss(asked.model, given)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(asked.model.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad()
    return cells


def main(work: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    document = json.loads(work.read_text())
    rows = document["rows"]
    with tempfile.TemporaryDirectory() as out:
        asked = trainer(document["model"], out)
        adamw = torch.optim.AdamW(asked.model.parameters(), lr=1e-6, fused=True)
        short = [r | {"prompt": r["prompt"][:8], "completion": r["completion"][:8]} for r in rows]
        update(asked, adamw, short[:ROWS])
        if DEVICE != "cpu":
            update(asked, adamw, rows)  # kernels and memory of these lengths
            torch.cuda.synchronize()
        started, busy = time.monotonic(), time.process_time()
        cells = update(asked, adamw, rows)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        seconds, busy = time.monotonic() - started, time.process_time() - busy
    useful = sum(len(row["prompt"]) + len(row["completion"]) for row in rows)
    print(
        json.dumps(
            {
                "tokens_per_s": useful / seconds,
                "seconds": seconds,
                "cpu_seconds": busy,
                "computed_tokens": cells,
                "peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20
                if DEVICE != "cpu"
                else 0.0,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
