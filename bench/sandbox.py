"""Cost of a sandboxed run compared with plain `python -I`.

The same small program on the same interpreter, in turns, so that a busy machine slows both alike; medians of wall time.

Run: python -m bench.sandbox [runs]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from triforge.sandbox import jail
from triforge.sandbox.client import Sandbox

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"
INPUT, OUTPUT = "20 22\n", "42\n"
RUNS = 40
MOST = 3.0  # times a plain run


@dataclass(frozen=True)
class Cost:
    """Median seconds of a plain and of a sandboxed run, and the median of their ratio, run by run."""

    plain_s: float
    sandboxed_s: float
    ratio: float


def timed(work: Callable[[], str]) -> float:
    """Seconds of a run; its output must be right."""
    begun = time.perf_counter()
    printed = work()
    seconds = time.perf_counter() - begun
    assert printed == OUTPUT, printed
    return seconds


def cost(sandbox: Sandbox, runs: int = RUNS) -> Cost:
    """Run the program in turns, plain and sandboxed."""
    command = [str(jail.interpreter()), "-I", "-c", PROGRAM]

    def plain() -> str:
        return subprocess.run(
            command, input=INPUT, capture_output=True, text=True, check=True
        ).stdout

    def sandboxed() -> str:
        return sandbox.run_blocking(PROGRAM, INPUT).stdout

    for warm_up in (plain, sandboxed):
        timed(warm_up)
    pairs = [(timed(plain), timed(sandboxed)) for _ in range(runs)]
    return Cost(
        plain_s=statistics.median(a for a, _ in pairs),
        sandboxed_s=statistics.median(b for _, b in pairs),
        ratio=statistics.median(b / a for a, b in pairs),
    )


def main(runs: int = RUNS) -> int:
    """Print the cost; 1 when a run costs too much."""
    sandbox = Sandbox()
    try:
        found = cost(sandbox, runs)
        print(
            f"one run: plain {1e3 * found.plain_s:.1f} ms, sandboxed {1e3 * found.sandboxed_s:.1f} ms, "
            f"ratio {found.ratio:.2f} (at most {MOST:g})"
        )
    finally:
        sandbox.close()
    return int(found.ratio > MOST)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
