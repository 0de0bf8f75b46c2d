"""`make chaos`: hurt a whole deployment at random moments and look at what is on record. Exit code 1: a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from chaos.catalogue import SCENARIOS, chosen
from chaos.play import Player
from chaos.record import table, write
from triforge.errors import TriforgeError

_ROOT = Path(__file__).parents[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", help="only these; all by default")
    parser.add_argument("--seed", type=int, default=None, help="of all moments; drawn by default")
    parser.add_argument("--rounds", type=int, default=None, help="of each scenario, for all alike")
    parser.add_argument("--quick", action="store_true", help="the selection of `make test`")
    parser.add_argument(
        "--minutes", type=float, default=27.0, help="nothing new begins after these"
    )
    parser.add_argument("--limit", type=float, default=20.0, help="seconds until a dead worker's errands are taken up")  # fmt: skip
    parser.add_argument("--state", type=Path, default=_ROOT / "var" / "chaos", help="folder of the deployment and the record")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Play; returns the exit status."""
    options = _parser().parse_args(arguments)
    console, started = Console(soft_wrap=True), time.monotonic()
    if options.list:
        for scenario in SCENARIOS:
            console.print(f"{scenario.name:22}{scenario.sentence}", highlight=False)
        return 0
    seed = int.from_bytes(os.urandom(3)) if options.seed is None else options.seed

    def tell(text: str) -> None:
        console.print(f"[{time.monotonic() - started:5.0f} s] {text}", markup=False, highlight=False)  # fmt: skip

    try:
        scenarios = chosen(options.scenario, quick=options.quick)
    except KeyError as error:
        console.print(f"chaos: no scenario {error}; `python -m chaos --list` names all")
        return 2
    tell(f"seed {seed}; {len(scenarios)} scenarios; starting the deployment")
    player = Player(
        options.state / "deployment", seed=seed, tell=tell, minutes=options.minutes, limit_s=options.limit
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        results = asyncio.run(player.play(scenarios, rounds=options.rounds))
    except TriforgeError as error:
        console.print(f"chaos: {error.detail}", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("chaos: interrupted; everything was stopped")
        return 130
    write(results, options.state, seed=seed, seconds=time.monotonic() - started)
    console.print(table(results))
    broken = sum(result.verdict != "held" for result in results)
    tell(f"{len(results)} rounds, {broken} not held; seed {seed}; record: {options.state / 'chaos.md'}")  # fmt: skip
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
