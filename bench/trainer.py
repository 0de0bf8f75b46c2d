"""One update of SmolLM2-135M-Instruct: this trainer, TRL's, and two ranks, side by side.

The rows are those of an agent's step: groups of answers to one prompt, most of them short, some long. Both trainers get
the same prompts, answers and advantages, the same threads, float32, no KL term. TRL runs as it does after generation:
`_compute_loss` on eight rows at a time (its default), backward, clipping, one AdamW step; it lives in an environment of its
own (`scripts/trl_equality`, made on the first run). Useful tokens are those of all prompts and answers, however often a
trainer computes them. Peaks are of resident memory, each in a process of its own.

Run: python -m bench.trainer [--groups 2] [--shrink 1] [--threads 1] [--without-trl] [--sharding auto] [--ranks-only]
Full forward passes of packed rows, other shapes, LoRA and memory, on a GPU or the CPU: python -m bench.gpu throughput
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import torch

from bench.machine import machine
from demo.models.smollm2 import smollm2_folder
from scripts.virtual_environments import ensure_trl
from services.trainer.learner.learner import Learner
from services.trainer.learner.memory import keep_freed_memory
from services.trainer.learner.parallel.ranks import Ranks, Sharding
from triforge.algorithms.algorithm import resolve
from triforge.config import LearnerSection
from triforge.supervisor.ports import free_port
from triforge.types import TrainBatch, TrainRow, WeightVersion

ANSWERS = 8  # of a group
BUDGET = 1024  # cells of a forward pass


def workload(groups: int, shrink: int, seed: int = 7) -> list[dict[str, Any]]:
    """Rows as `{prompt, completion, advantage}`: prompts of 150 to 450 tokens, answers of 8 to 256, most of them short.

    All of it is `shrink` times shorter.
    """
    draw = random.Random(seed)
    rows = []
    for _ in range(groups):
        prompt = [draw.randrange(1000, 40000) for _ in range(draw.randint(150, 450) // shrink)]
        for _ in range(ANSWERS):
            length = int(min(256, max(8, draw.lognormvariate(3.4, 1.0)))) // shrink
            answer = [draw.randrange(1000, 40000) for _ in range(length)]
            rows.append({"prompt": prompt, "completion": answer, "advantage": draw.gauss(0, 1)})
    return rows


def batch_of(
    rows: list[dict[str, Any]], folder: Path, **options: Any
) -> tuple[TrainBatch, list[TrainRow]]:
    """Return the same rows as a step of one update."""
    total = sum(len(row["completion"]) for row in rows)
    made = []
    for number, row in enumerate(rows):
        before, own = len(row["prompt"]), len(row["completion"])
        count = before + own
        made.append(
            TrainRow(
                key=str(number), ids=(*row["prompt"], *row["completion"]), logprobs=(-10.0,) * count,
                advantages=(row["advantage"],) * count, weights=(0.0,) * before + (1 / total,) * own,
                versions=(0,) * count, task_id="bench",
            )
        )  # fmt: skip
    learner = {"updates_per_step": 1, "token_budget": BUDGET, "max_tokens": 131072, **options}
    initial = WeightVersion(number=0, folder=str(folder))
    batch = TrainBatch(
        batch_id="bench", run_id="bench", role="policy", step=1, initial=initial, start=initial, uri="", num_rows=len(made),
        num_tokens=0, algorithm=resolve("rlanything", {"kl_beta": 0.0}),
        learner=LearnerSection.model_validate(learner),
    )  # fmt: skip
    return batch, made


def ours(
    work: Path, threads: int, core: int | None, budget: int, sharding: Sharding = "auto"
) -> dict[str, float]:
    """One update by this trainer; under torchrun's variables, a rank's share of it."""
    keep_freed_memory()
    if core is not None:
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(threads)
    document = json.loads(work.read_text())
    folder = Path(document["model"])
    ranks = Ranks.join(sharding=sharding)
    learner = Learner.fresh(folder, ranks)
    learner.train(*batch_of(brief(document["rows"]), folder, token_budget=budget))
    started = time.process_time()
    found = learner.train(*batch_of(document["rows"], folder, token_budget=budget)).metrics
    found = {**found, "cpu_seconds": time.process_time() - started, "peak_mib": peak_mib()}
    if ranks.device.type == "cuda":
        found["peak_gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    ranks.leave()
    return found


def brief(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Beginnings of the first rows, to warm up with."""
    return [
        row | {"prompt": row["prompt"][:8], "completion": row["completion"][:8]}
        for row in rows[:ANSWERS]
    ]


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def call(command: list[str], **variables: str) -> subprocess.Popen[str]:
    """Run a part of the bench in its own process, which writes JSON as its last line."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def answer(part: subprocess.Popen[str]) -> dict[str, float]:
    printed, _ = part.communicate()
    if part.returncode:
        raise SystemExit(f"{' '.join(map(str, part.args))}: ended with {part.returncode}")
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def ranked(work: Path, world: int, sharding: str = "auto") -> dict[str, float]:
    """Run the update on `world` ranks, each pinned to a core of its own; return the first rank's figures with the busiest rank's CPU time."""
    port, parts = str(free_port()), []
    for rank in range(world):
        group = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        options = ["--part", "ours", "--core", str(rank), "--sharding", sharding]
        command = [sys.executable, "-m", "bench.trainer", "--work", str(work), *options]
        parts.append(call(command, **group))
    found = [answer(part) for part in parts]
    return found[0] | {"cpu_seconds": max(f["cpu_seconds"] for f in found)}


def ranks(work: Path, sharding: str) -> None:
    """Print two ranks compared with one. CPU time shows the ratio on idle cores."""
    one, two = ranked(work, 1), ranked(work, 2, sharding)
    print(
        "\n| ranks, a core each | useful tokens/s | ratio | seconds of CPU, busiest rank | ratio |\n|---|---|---|---|---|"
    )
    for world, found in ((1, one), (2, two)):
        ratio = found["tokens_per_s"] / one["tokens_per_s"]
        busy = found["cpu_seconds"]
        print(
            f"| {world} | {found['tokens_per_s']:.1f} | {ratio:.2f} | {busy:.1f} | {one['cpu_seconds'] / busy:.2f} |"
        )


def table(threads: int, work: Path, *, trl: bool) -> None:
    base = ["--work", str(work), "--threads", str(threads)]
    us = answer(call([sys.executable, "-m", "bench.trainer", "--part", "ours", *base]))
    print(f"\n{machine()}; {threads} thread(s)")
    print("\n| one update of SmolLM2-135M | triforge | TRL | ratio |\n|---|---|---|---|")
    them: dict[str, float] = {}
    if trl:
        script = Path(__file__).with_name("trainer_trl.py")
        quiet = {
            "PYTHONWARNINGS": "ignore",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        them = answer(call([str(ensure_trl()), str(script), str(work), str(threads)], **quiet))
    for name, label, form in (
        ("tokens_per_s", "useful tokens/s", ".1f"),
        ("seconds", "seconds", ".1f"),
        ("cpu_seconds", "seconds of CPU", ".1f"),
        ("computed_tokens", "tokens computed, padding included", ".0f"),
        ("peak_mib", "peak memory, MiB", ".0f"),
    ):
        compared = f"{them[name]:{form}} | {us[name] / them[name]:.2f}" if them else "|"
        print(f"| {label} | {us[name]:{form}} | {compared} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument(
        "--shrink", type=int, default=1, help="divide all lengths, for a slow machine"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-trl", action="store_true")
    parser.add_argument("--sharding", choices=get_args(Sharding), default="auto")
    parser.add_argument(
        "--ranks-only", action="store_true", help="only two ranks compared with one"
    )
    parser.add_argument("--model", type=Path, help="another model folder")
    parser.add_argument("--part", choices=("ours",), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "ours":
        print(json.dumps(ours(args.work, args.threads, args.core, BUDGET, args.sharding)))
        return
    folder = args.model or smollm2_folder()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work.json"
        work.write_text(
            json.dumps({"model": str(folder), "rows": workload(args.groups, args.shrink)})
        )
        if not args.ranks_only:
            table(args.threads, work, trl=not args.without_trl)
        else:
            print(f"\n{machine()}; {args.threads} thread(s)")
        ranks(work, args.sharding)


if __name__ == "__main__":
    main()
