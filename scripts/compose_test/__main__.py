"""`make compose-test`: the whole stack in containers, and what it survives.

Starts a Docker engine of its own where none runs (as root; nothing is installed), makes the base images from Debian's
packages where they cannot be pulled, builds, brings the stack up, plays a pool to its end, and then kills, cuts off and
restarts one container after another while runs go on. What lasts is read at the end: every group accounted for, nothing
trained twice, versions growing and unmixed, runs finished. Everything is stopped and removed, whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.compose_test.calling import ROOT, Tell
from scripts.compose_test.engine import Docker, docker_engine
from scripts.compose_test.faults import Course, Outcome, faults
from scripts.compose_test.images import fetch_wheels, have_base_images, lay_out
from scripts.compose_test.stack import Stack
from scripts.compose_test.table import check_table, fault_table, machine, totals_line
from scripts.compose_test.verdicts import judge, totals
from triforge.errors import TriforgeError

POOL: dict[str, Any] = {
    "name": "kitchen",
    "environment": "household",
    "generate": {
        "count": 64, "heldout": 8, "seed": 7,
        "options": {
            "receptacles": [4, 6], "distractors": [1, 3], "lamps": 0.0, "horizon": 14,
            "goals": ["place", "clean", "heat", "cool"],
            "objects": ["mug", "plate", "apple", "potato", "cup", "egg", "tomato", "bowl"],
            "kinds": ["cabinet", "drawer", "fridge", "microwave", "sinkbasin", "countertop", "shelf", "diningtable"],
        },
    },
}  # fmt: skip


def run_config(steps: int) -> dict[str, Any]:
    """What is laid over the demo's document."""
    return {"run": {"steps": steps, "groups_per_step": 8, "eval_every": steps, "eval_tasks": 8}}


def main(arguments: list[str] | None = None) -> int:
    """Test, clean up; returns the exit status."""
    options = _options(arguments)
    started = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - started:5.0f} s] {text}\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with docker_engine(folder / "engine", tell) as docker:
            report = _test(docker, folder, options, tell)
    except TriforgeError as error:
        tell(f"failed: {error.detail}")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; everything was stopped")
        return 130
    finally:
        if not options.keep:
            shutil.rmtree(folder / "engine", ignore_errors=True)
    return _tell_report(report, folder, tell)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.compose_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "compose-test", help="engine, base image, wheels, logs, result")  # fmt: skip
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (default 20)")
    parser.add_argument("--only", nargs="*", default=None, metavar="SERVICE", help="strike these services alone; none: no faults")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults strike")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="longest recovery from one fault")  # fmt: skip
    parser.add_argument("--end", type=float, default=900.0, metavar="SECONDS", help="longest undisturbed run")  # fmt: skip
    parser.add_argument("--no-build", action="store_true", help="take the images that a test with --keep has built")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="leave images in the engine's folder for the next time")  # fmt: skip
    return parser.parse_args(arguments)


def _test(docker: Docker, folder: Path, options: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    """Everything between the engine's start and its end; the report."""
    stand_ins = have_base_images(docker, folder, tell)
    stack = Stack(docker, folder, offline=stand_ins, tell=tell)
    built_s = 0.0 if options.no_build else _build(stack, folder, offline=stand_ins, tell=tell)
    report: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "stand_ins": stand_ins,
        "images_mb": stack.image_sizes(),
        "build_s": round(built_s, 1),
    }
    with _standing(stack, folder, tell):
        tell("models: from the cache" if stack.take_models() else "models: the stack makes them")
        report["up_s"] = round(stack.up(), 1)
        tell(f"all healthy after {report['up_s']} s: {', '.join(stack.services())}")
        report |= _disturb(stack, options, tell)
    return report


def _build(stack: Stack, folder: Path, *, offline: bool, tell: Tell) -> float:
    laid = lay_out(fetch_wheels(folder, tell)) if offline else []
    try:
        tell("building the images")
        seconds = stack.build()
    finally:
        for path in laid:
            path.unlink(missing_ok=True)
    tell(f"built in {seconds:.0f} s: {stack.image_sizes()} MB")
    return seconds


@contextlib.contextmanager
def _standing(stack: Stack, folder: Path, tell: Tell) -> Iterator[None]:
    """The project's containers and volumes are there for the body, and gone afterwards; their output is kept."""
    stack.down()  # of a test that was killed
    try:
        yield
    finally:
        try:
            stack.logs(folder / "stack.log")
        finally:
            stack.down()
            tell(f"containers and volumes are removed; their output: {folder / 'stack.log'}")


def _disturb(stack: Stack, options: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    """One run in peace, then runs under fire; what came of it."""
    config = run_config(options.steps)
    stack.take_key()
    stack.post("pools", "/v1/pools", POOL)
    course = Course(stack, POOL["name"], config, seed=options.seed, limit_s=options.limit, tell=tell)  # fmt: skip
    began = time.monotonic()
    course.begin()
    quiet = course.end(within_s=options.end)
    quiet_s = round(time.monotonic() - began, 1)
    tell(f"a run of {options.steps} steps in peace: {quiet['status']} after {quiet_s} s")
    chosen = [f for f in faults(stack.services()) if options.only is None or f.service in options.only]  # fmt: skip
    for fault in chosen:
        course.strike(fault)
    course.recover()
    last = course.end(within_s=options.end)
    tell(f"the last run is {last['status']} at step {last['step']}")
    facts = course.settled_facts(within_s=options.limit)
    return {
        "quiet_run_s": quiet_s,
        "faults": [outcome.document() for outcome in course.outcomes],
        "checks": judge(facts),
        "totals": totals(facts),
    }


def _tell_report(report: dict[str, Any], folder: Path, tell: Tell) -> int:
    path = folder / "result.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    outcomes = [Outcome(**entry) for entry in report["faults"]]
    wrong = any(report["checks"].values()) or not all(o.recovered for o in outcomes)
    lines = [
        f"{report['at']}, {report['machine']}; built in {report['build_s']:.0f} s, healthy after {report['up_s']:.0f} s, "
        f"a run in peace {report['quiet_run_s']:.0f} s",
        fault_table(outcomes),
        check_table(report["checks"]),
        totals_line(report["totals"]),
    ]
    sys.stdout.write("\n\n".join(["", *lines, ""]))
    tell(f"{'FAILED' if wrong else 'passed'}; everything in {path}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
