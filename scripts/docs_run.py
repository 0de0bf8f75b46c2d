"""`make docs-run`: documented trainings that promise a gain are run as a reader would, and have to keep the promise.

A promise is the end of a command's line in README.md, docs/ or environments/*/README.md: `# +15 points`. Blocks of the page that follow
the name of a file and a colon (`my_env.py`, whole:) are written into the folder first, and lines `python3 FILE.py` are run.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PAGES: Final = ("README.md", "docs/*.md", "environments/*/README.md")
_PROMISE: Final = re.compile(
    r"^(?:\.venv/bin/)?(make demo|triforge train [^#\n]+?)\s+# .*\+(\d+) points", re.MULTILINE
)
_FILE: Final = re.compile(r"`([\w.]+)`[^`\n]*:\n\n(?:<!--.*-->\n)?```\w+\n(.*?)```", re.DOTALL)
_FIRST: Final = re.compile(r"^python3 (\w+\.py)$", re.MULTILINE)
_RESULT: Final = re.compile(r"held-out (success|score) (-?[\d.]+) -> (-?[\d.]+)")


@dataclass(frozen=True)
class Promise:
    """A documented command and the points of held-out success, sampled, that it promises to gain."""

    page: Path
    command: str
    points: int


def promises() -> Iterator[Promise]:
    """Yield the promises of all pages."""
    for pattern in _PAGES:
        for page in sorted(ROOT.glob(pattern)):
            for command, points in _PROMISE.findall(page.read_text(encoding="utf-8")):
                yield Promise(page, command, int(points))


def keep(promise: Promise, seed: int) -> bool:
    """Run a command in an empty folder with the page's files; print and return whether it gained what it promises."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        page = promise.page.read_text(encoding="utf-8")
        for name, text in _FILE.findall(page):
            (folder / name).write_text(text, encoding="utf-8")
        for name in _FIRST.findall(page):
            subprocess.run([sys.executable, name], cwd=folder, check=True)  # noqa: S603
        program = [sys.executable, "-m", "demo"]
        if promise.command != "make demo":
            command = shlex.split(promise.command)
            program = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        state = str(folder / "state")
        began = time.monotonic()
        done = subprocess.run(  # noqa: S603 (a fixed argument vector, no shell)
            [*program, "--seed", str(seed), "--state", state], cwd=folder, text=True,
            env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
    found = _RESULT.search(done.stdout)
    gain = 100 * (float(found[3]) - float(found[2])) if found and not done.returncode else None
    kept = gain is not None and gain >= promise.points
    shown = f"{found[2]} -> {found[3]}" if found else f"no verdict, exit code {done.returncode}"
    where = promise.page.relative_to(ROOT)
    print(  # noqa: T201 (a command's output)
        f"{'kept' if kept else 'BROKEN'}: {where}: {promise.command} --seed {seed}: {shown}, promised "
        f"+{promise.points} points, {seconds:.0f} s",
        flush=True,
    )
    if gain is None:
        print("\n".join(done.stdout.splitlines()[-20:]), flush=True)  # noqa: T201
    return kept


def main() -> int:
    """Run every documented command that promises a gain, on each seed; 1 if a promise is broken or there is none."""
    parser = argparse.ArgumentParser(prog="python -m scripts.docs_run", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="commands that contain this text")
    options = parser.parse_args()
    chosen = [one for one in promises() if options.only in one.command]
    kept = [keep(one, seed) for one in chosen for seed in options.seeds]
    return 0 if kept and all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
