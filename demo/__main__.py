"""`make demo` and `make demo-smollm2`: the closed loop, whole, on this machine, with a report at the end."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.plots import draw
from demo.report import console_table, write_report
from demo.session import Record, play
from demo.settings import ROOT, DemoSettings, cache_folder
from demo.stack import stack
from demo.warm_start import smollm2, tiny_models
from triforge.config import assignment, load, merge, read_document
from triforge.errors import ConfigError, TriforgeError

CONFIGS = ("demo.toml", "demo-smollm2.toml")  # one of them lies in every folder that a demo made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--smollm2",
        action="store_true",
        help="SmolLM2-135M-Instruct as policy and judge, three steps",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of tasks, warm start and run")
    parser.add_argument(
        "--state",
        type=Path,
        default=ROOT / "var" / "demo",
        help="folder of the deployment and the report",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="one field of the run, e.g. run.steps=5; repeatable",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Prepare the models, start everything, run the loop, write the report; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    started = time.monotonic()

    def tell(text: str) -> None:
        console.print(
            f"[{time.monotonic() - started:5.0f} s] {text}", markup=False, highlight=False
        )

    try:
        return _demo(options, console, tell)
    except TriforgeError as error:
        console.print(f"demo: {error.detail}", markup=False, highlight=False, style="red")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything was stopped")
        return 130


def _demo(options: argparse.Namespace, console: Console, tell: Any) -> int:
    state: Path = options.state.resolve()
    name = CONFIGS[options.smollm2]
    clear(state)
    settings = _settings(options)
    tell(f"models are kept in {cache_folder()}; everything else goes to {state}")
    rewriter = smollm2(tell)
    policy, judge = (rewriter, rewriter) if options.smollm2 else tiny_models(settings, tell)
    config = state / name
    _write_config(
        ROOT / "configs" / name,
        config,
        {"acts": policy, "judges": judge, "rewrites": rewriter},
        options.set,
    )
    load(config)
    tell(
        "starting Valkey, three engines, three policy rooms, env_adapter, reward, trainer, workers and learners"
    )
    report = state / "report"
    with stack(config, state):
        tell("everything is up; submitting a pool and a run over REST")
        record = asyncio.run(play(settings, state, console, state / "run.parquet"))
        tell("run ended; stopping everything")
    notes = () if not options.smollm2 else (SMOLLM2_NOTE,)
    write_report(record, draw(record.steps, report), notes, _made(report) / "report.html")
    console.print(console_table(record))
    tell(
        f"report: {report / 'report.html'}  (pictures beside it; every step: {state / 'run.parquet'})"
    )
    return 0 if _ended_well(record) else 1


def clear(state: Path) -> None:
    """Delete what an earlier demo left in its folder.

    Raises:
        ConfigError: the folder holds something that no demo made.
    """
    if not state.exists():
        return
    if not state.is_dir() or (
        any(state.iterdir()) and not any((state / name).is_file() for name in CONFIGS)
    ):
        raise ConfigError(
            f"--state: given {state}, which holds something else, expected a new folder or that of an earlier demo, "
            "which is emptied first"
        )
    shutil.rmtree(state, ignore_errors=True)


SMOLLM2_NOTE = (
    "Three steps show that a real pretrained model goes round the ring and that its weights change; they are far too few "
    "to show that it learns."
)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ended_well(record: Record) -> bool:
    return record.run.status == "finished"


def _settings(options: argparse.Namespace) -> DemoSettings:
    if options.smollm2:
        return DemoSettings(
            seed=options.seed, train_tasks=24, heldout_tasks=4,
            generate={"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]}, options={"wording": "alfworld"},
        )  # fmt: skip
    return DemoSettings(seed=options.seed)


def _write_config(
    source: Path, path: Path, models: dict[str, Path], assignments: list[str]
) -> None:
    """The document with the model folders and the command line's fields filled in."""
    document = merge(
        read_document(source), {"models": {role: {"path": str(p)} for role, p in models.items()}}
    )
    for item in assignments:
        document = merge(document, assignment(item))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_toml(document)), encoding="utf-8")


def _toml(document: dict[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for key, value in document.items():
        if isinstance(value, dict):
            name = f"{prefix}{key}"
            tables += [f"\n[{name}]\n", *_toml(value, f"{name}.")]
        else:
            lines.append(f"{key} = {json.dumps(value)}\n")
    return lines + tables


if __name__ == "__main__":
    sys.exit(main())
