"""`make chaos`: hurt a whole deployment at random moments and look at what is on record.

Exit code 0: every scenario was played and every promise held, but for those that say why they cannot be tried on this machine;
second rounds, at other moments, are played as far as the time reaches. 1: a promise was broken, or the time was over before
each scenario was played as often as asked for; 2: no such scenario; 130: interrupted. Whatever was played by then
is in the table and in the record.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from chaos.catalogue import SCENARIOS, Scenario, chosen
from chaos.play import Player
from chaos.record import sums, table, write
from triforge.errors import TriforgeError

_ROOT = Path(__file__).parents[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("scenario", nargs="*", help="only these; all by default")
    parser.add_argument("--seed", type=int, default=None, help="of all moments; drawn by default")
    parser.add_argument("--rounds", type=int, default=None, help="of each scenario, for all alike")
    parser.add_argument(
        "--quick", action="store_true", help="the selection of `make test`, a round each"
    )
    parser.add_argument(
        "--minutes", type=float, default=27.0, help="nothing new begins after these"
    )
    parser.add_argument("--limit", type=float, default=20.0, help="seconds until a dead worker's jobs are taken up")  # fmt: skip
    parser.add_argument("--state", type=Path, default=_ROOT / "var" / "chaos", help="folder of the deployment and the record")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    return parser


def main(arguments: list[str] | None = None) -> int:
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
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        del os.environ[name]  # of some other deployment, which is none of ours to hurt
    status = 0
    try:
        rounds = options.rounds or (1 if options.quick else None)
        asyncio.run(_play(player, scenarios, rounds, tell))
    except (TriforgeError, OSError) as error:
        status = 1
        message = error.detail if isinstance(error, TriforgeError) else str(error)
        console.print(f"chaos: {message}", markup=False, highlight=False)
    except asyncio.CancelledError:
        status = 130
        tell("interrupted; everything was stopped")
    finally:  # what is known is not lost with what went wrong
        if player.results:
            write(player.results, options.state, seed=seed, seconds=time.monotonic() - started)
            console.print(table(player.results))
            for sentence in (*sums(player.results), f"seed {seed}; record: {options.state / 'chaos.json'}"):  # fmt: skip
                tell(sentence)
    return status or int(any(r.verdict in ("broken", "not played") for r in player.results))


async def _play(
    player: Player, scenarios: list[Scenario], rounds: int | None, tell: Callable[[str], None]
) -> None:
    """Play until the end or the first signal; a second one does not disturb the cleaning up."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    printed = False

    def interrupt() -> None:
        nonlocal printed
        if not printed:
            printed = True
            tell("stopping everything that was started; this takes up to half a minute")
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    await player.play(scenarios, rounds=rounds)


if __name__ == "__main__":
    sys.exit(main())
