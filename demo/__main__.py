"""`make demo` and `make demo-smollm2`: the closed loop, whole, on this machine, with a report at the end."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.episodes import Pair, find_pair, judged
from demo.prepare import prepare, settings_of
from demo.report import console_table, write_report
from demo.session import Record, play
from demo.settings import ROOT
from demo.stack import stack
from triforge.cli.terminal import settings as addresses
from triforge.clients.transport import http_client
from triforge.errors import TriforgeError


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
    settings = settings_of(options.seed, smollm2=options.smollm2)
    config = prepare(settings, state, tell, smollm2=options.smollm2, assignments=options.set)
    tell(
        "starting Valkey, three engines, three policy services, env_adapter, reward, trainer, workers and learners"
    )
    report = state / "report" / "report.html"
    with stack(config, state):
        tell("everything is up; submitting a pool and a run over REST")
        record = asyncio.run(play(settings, state, console, state / "run.parquet"))
        pair = asyncio.run(_pair(record, state, tell))
        tell("run ended; stopping everything")
    notes = () if not options.smollm2 else (SMOLLM2_NOTE,)
    write_report(record, notes, report, pair)
    console.print(console_table(record))
    tell(f"report: {report}  (every step: {state / 'run.parquet'})")
    return 0 if _ended_well(record) else 1


SMOLLM2_NOTE = (
    "Three steps show that a real pretrained model goes round the loop and that its weights change; they are far too few "
    "to show that it learns."
)


async def _pair(record: Record, state: Path, tell: Any) -> Pair | None:
    """A held-out task before and after, with votes if the run has a judge that answers."""
    pair = find_pair(state / "run.parquet")
    if pair is None or not any("judge/votes" in s.metrics for s in record.steps):
        return pair
    where = addresses(state)
    async with http_client(where.reward_url, api_key=where.key.get_secret_value()) as reward:
        try:
            return await judged(pair, reward)
        except TriforgeError as error:
            tell(f"no votes on the task before and after: {error.detail}")
            return pair


def _ended_well(record: Record) -> bool:
    return record.run.status == "finished"


if __name__ == "__main__":
    sys.exit(main())
