"""`make compose-test`: the whole stack in containers, and what it survives.

Starts a Docker engine of its own where none runs (as root; nothing is installed), makes the base images from Debian's
packages where they cannot be pulled, builds, brings the stack up, has the lines of docs/train.md#over-rest submit a pool and watch a run to its
end, and then kills, cuts off and restarts one container after another while runs go on. What lasts is read at the end: every group accounted for, nothing
trained twice, versions growing and unmixed, runs finished. Then the stack is backed up while it trains, deleted and restored
with the operators' own commands, serves a trainer outside with the profile `sidecar`, and plays programs of a model with
docker-compose.code.yml. Everything is stopped and
removed, whatever happens; the record is written as it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.calling import ROOT
from scripts.compose_test import outside, programs, walk_through
from scripts.compose_test.engine import Docker, demand_plugin, docker_engine, remove
from scripts.compose_test.faults import Course, Limits, faults
from scripts.compose_test.images import fetch_debian, fetch_wheels, have_base_images, lay_out
from scripts.compose_test.record import Record
from scripts.compose_test.recovery import lose_everything
from scripts.compose_test.stack import Stack
from scripts.compose_test.table import failures, machine, report
from scripts.compose_test.verdicts import judge, totals
from triforge.errors import TriforgeError


def run_config(steps: int) -> dict[str, Any]:
    return {"run": {"steps": steps, "groups_per_step": 8, "eval_every": steps, "eval_tasks": 8}}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    record = Record(folder / "record.json")
    try:
        if options.fetch:
            fetch_debian(folder, record.tell)
            fetch_wheels(folder, record.tell)
            return 0
        demand_plugin()
        with docker_engine(folder / "engine", record.tell) as docker:
            _test(docker, folder, options, record)
        record.note("ended")
    except TriforgeError as error:
        record.note("ended", failed=error.detail)
    except KeyboardInterrupt:
        record.note("ended", failed="interrupted")
    finally:
        if not options.keep:
            remove(folder / "engine")
    return _verdict(record)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.compose_test",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "compose-test", help="engine, base image, wheels, logs, records")  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=30, help="steps of each run under fire (default 30)"
    )
    parser.add_argument("--only", nargs="*", default=None, metavar="SERVICE", help="strike these services alone; none: no faults")  # fmt: skip
    parser.add_argument("--parts", nargs="*", default=["restore", "sidecar", "programs"], help="what follows the faults (default: restore sidecar programs)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults strike")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="longest recovery from the death of one container")  # fmt: skip
    parser.add_argument("--end", type=float, default=900.0, metavar="SECONDS", help="longest undisturbed run")  # fmt: skip
    parser.add_argument("--no-build", action="store_true", help="take the images that a test with --keep has built")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="leave images in the engine's folder for the next time")  # fmt: skip
    parser.add_argument("--fetch", action="store_true", help="only download what a machine without a registry needs; start nothing")  # fmt: skip
    return parser.parse_args(arguments)


def _test(docker: Docker, folder: Path, options: argparse.Namespace, record: Record) -> None:
    """Everything between the engine's start and its end."""
    stand_ins = have_base_images(docker, folder, record.tell)
    version = docker("version", "--format", "Docker {{.Server.Version}}").strip()
    record.note("begun", machine=machine(), docker=version, stand_ins=stand_ins)
    stack = Stack(docker, folder, record.tell)
    built_s = 0.0 if options.no_build else _build(stack, folder, record, offline=stand_ins)
    record.note("built", took_s=round(built_s, 1), images_mb=stack.image_sizes())
    with _standing(stack, folder, record):
        record.tell("models: from the cache" if stack.take_models() else "models: the stack makes them")  # fmt: skip
        up_s = round(stack.up(), 1)
        record.note("up", took_s=up_s, services=stack.services())
        record.tell(f"all healthy after {up_s} s: {', '.join(stack.services())}")
        course = _disturb(stack, options, record, up_s=up_s)
        if "restore" in options.parts:
            with _by_itself("restore", record):
                _restore(stack, course, folder, options, record)
        if "sidecar" in options.parts:
            with _by_itself("sidecar", record):
                _sidecar(stack, record)
        if "programs" in options.parts:
            with _by_itself("programs", record):
                _programs(stack, folder, options, record)


def _build(stack: Stack, folder: Path, record: Record, *, offline: bool) -> float:
    """Build the images; where there is no package index, with wheels from the build's own folder."""
    laid = lay_out(fetch_wheels(folder, record.tell)) if offline else []
    record.tell("building the images")
    try:
        seconds = stack.build("--no-index" if offline else "")
    finally:
        for path in laid:
            path.unlink(missing_ok=True)
    record.tell(f"built in {seconds:.0f} s: {stack.image_sizes()} MB")
    return seconds


@contextlib.contextmanager
def _by_itself(part: str, record: Record) -> Iterator[None]:
    """Yield a part that fails fails the test, and does not keep what follows from being looked at."""
    try:
        yield
    except TriforgeError as error:
        record.tell(f"{part} failed: {error.detail}")
        record.note("broken", part=part, why=error.detail)


@contextlib.contextmanager
def _standing(stack: Stack, folder: Path, record: Record) -> Iterator[None]:
    """Yield the project's containers and volumes are there for the body, and gone afterwards; their output is kept."""
    stack.down()  # of a test that was killed
    try:
        yield
    finally:
        try:
            stack.logs(folder / "stack.log")
        finally:
            stack.down()
            record.tell(f"containers and volumes are removed; their output: {folder / 'stack.log'}")


def _disturb(stack: Stack, options: argparse.Namespace, record: Record, *, up_s: float) -> Course:
    """One run in peace, then runs under fire, and what came of it."""
    stack.take_key()
    watched, took_s = stack.by_hand(within_s=options.end)
    quiet = stack.get("runs", f"/v1/runs/{watched}")
    record.note("peace", took_s=took_s, status=quiet["status"], steps=quiet["steps"])
    record.tell(f"the lines of docs/train.md#over-rest: a run of {quiet['steps']} steps is {quiet['status']} after {took_s} s")  # fmt: skip
    limits = Limits.of(options.limit, up_s=up_s)
    course = Course(stack, walk_through.POOL, run_config(options.steps), seed=options.seed, limits=limits, record=record)  # fmt: skip
    chosen = [f for f in faults(stack.services()) if options.only is None or f.service in options.only]  # fmt: skip
    for fault in chosen:
        course.strike(fault)
    course.recover()
    quiet_since = max([stack.started_at(stack.services()), *(o.at for o in course.outcomes)])
    last = course.end(within_s=options.end)
    record.tell(f"the last run is {last['status']} at step {last['step']}")
    facts = course.settled_facts(within_s=limits.one_s)
    record.note("checks", checks=judge(facts, quiet_since=quiet_since), totals=totals(facts), unacknowledged=facts["unacknowledged"])  # fmt: skip
    stack.logs(stack.folder / "stack-faults.log")
    return course


def _restore(
    stack: Stack, course: Course, folder: Path, options: argparse.Namespace, record: Record
) -> None:
    """Back up, lose everything, restore."""
    record.tell("backup while a run trains, everything deleted, restore")
    restored, facts = lose_everything(stack, course, folder, within_s=options.end)
    quiet_since = stack.started_at(stack.services())
    record.note("restored", **restored, checks=judge(facts, quiet_since=quiet_since), totals=totals(facts))  # fmt: skip
    record.tell(f"restored: {restored}")


def _sidecar(stack: Stack, record: Record) -> None:
    """Serve a trainer outside on a fresh stack with the profile `sidecar`."""
    record.tell("a trainer outside, with the profile sidecar")
    stack.wipe()
    stack.set(**outside.PROFILE)
    try:
        up_s = round(stack.up(), 1)
        stack.take_key()
        found = outside.train(stack)
    finally:
        stack.stop()
        stack.set(**outside.WITHOUT)
    record.note("sidecar", up_s=up_s, **found)
    record.tell(f"sidecar: {found}")


def _programs(stack: Stack, folder: Path, options: argparse.Namespace, record: Record) -> None:
    """Play programs on a fresh stack with the file for programs."""
    from scripts.compose_test.reading import lay_ready  # torch

    record.tell("programs of a model, with docker-compose.code.yml")
    stack.wipe()
    lay_ready(stack, folder)
    up_s = round(stack.up(), 1)
    stack.take_key()
    stack.post("pools", "/v1/pools", programs.DRAWN)
    stack.post("pools", "/v1/pools", programs.POOL)
    began = time.monotonic()
    limits = Limits.of(options.limit, up_s=up_s)
    course = Course(stack, programs.POOL["name"], {}, seed=options.seed, limits=limits, record=record)  # fmt: skip
    run = course.begin()
    last = course.end(within_s=options.end)
    run_s = round(time.monotonic() - began, 1)
    wrong = [f"the run is {last['status']}: {last['reason']}"] if last["status"] != "finished" else []  # fmt: skip
    if not wrong:
        stack.save("runs", f"/v1/runs/{run}/export", folder / "programs.parquet")
        steps: list[dict[str, Any]] = stack.get("runs", f"/v1/runs/{run}/steps")["items"]
        wrong = programs.wrong_with(steps[1:], folder / "programs.parquet")
    record.note("programs", up_s=up_s, run_s=run_s, wrong=wrong)
    record.tell(f"programs: {wrong or 'as expected'} after {run_s} s")


def _verdict(record: Record) -> int:
    """Print what the test has found; 1 unless a whole test passed."""
    wrong = failures(record.story)
    if ended := record.story["ended"].get("failed"):
        wrong.insert(0, ended)
    verdict = "\n".join(["FAILED", *wrong]) if wrong else "passed"
    sys.stdout.write(f"\n{report(record.story)}\n\n{verdict}; the record: {record.path}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
