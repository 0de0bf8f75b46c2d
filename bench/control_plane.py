"""What the loop costs without the models: engine and judge answer at once, the environment does next to nothing.

    loop       judged trajectories a second from the orchestrator over the queues and back into a committed step, beside what
               the queue alone bears with as many jobs that do nothing
    pool       a pool of 100,000 tasks from streamed JSONL, and plans drawn from it
    many       10,000 groups through the orchestrator, a thousand in flight: does its memory stay flat
    verifiers  rollouts a second beside the evaluation loop of `verifiers`, same engine, prompts and turns

Run: python -m bench.control_plane [--small] [--only PART ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.control_plane_loop import flatness, rollouts_only, run, upload
from bench.control_plane_noop import ROLLOUTS
from bench.control_plane_share import show_share, through_the_loop
from bench.control_plane_stack import Stack, loop
from bench.control_plane_verifiers import installed, measure

PARTS = ("loop", "pool", "many", "verifiers")
WANTED_RATIO = 3.0


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"


async def many_groups(stack: Stack, small: bool) -> dict[str, Any]:
    """Small groups, so that many of them pass in a short time."""
    await upload(stack, "many", 2000)
    groups, steps = (100, 4) if small else (500, 20)
    found = await run(stack, "many", groups=groups, steps=steps, rollouts=2, turns=1, votes=1)
    return found | {"in_flight": 2 * groups, "orchestrator": flatness(found)}


async def against_verifiers(stack: Stack, folder: Path, small: bool) -> dict[str, Any]:
    """The same prompts and one turn each, from the same engine process."""
    found = installed()
    if isinstance(found, str):
        return {"skipped": found}
    prompts, each = (8, 2) if small else (16, 3)
    await upload(stack, "alone", 512)
    await rollouts_only(stack, "alone", 16, ROLLOUTS, 1)  # warm
    ours = await rollouts_only(stack, "alone", 128 if small else 512, ROLLOUTS, 1)
    few = await rollouts_only(stack, "alone", prompts, each, 1)
    theirs = await asyncio.to_thread(
        measure, found, folder, stack.engines["policy"], prompts=prompts, rollouts=each
    )
    return {
        "ours": ours, "ours_as_few": few, "theirs": theirs,
        "ratio": ours["rollouts_s"] / theirs["rollouts_s"],
        "ratio_as_few": few["rollouts_s"] / theirs["rollouts_s"],
    }  # fmt: skip


async def everything(
    parts: list[str], small: bool, keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All parts in turn; `keep` is given what there is after each."""
    found: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with loop(folder) as stack:
            if "pool" in parts:
                found["pool"] = await upload(stack, "large", 5_000 if small else 100_000)
                keep(found)
            if "many" in parts:  # before longer episodes have made the orchestrator larger
                found["many"] = await many_groups(stack, small)
                keep(found)
            if "loop" in parts:
                found["loop"] = await through_the_loop(stack, folder, small)
                keep(found)
            if "verifiers" in parts:
                found["verifiers"] = await against_verifiers(stack, folder, small)
    return found


def show(found: dict[str, Any]) -> None:
    print(f"machine: {found['machine']}")
    if "loop" in found:
        show_share(found["loop"])
    if "pool" in found:
        p = found["pool"]
        print(
            f"\npool of {p['tasks']} tasks: {p['tasks_s']:.0f} tasks/s, env_adapter {p['rss_before_mib']:.0f} MiB before, "
            f"{p['rss_peak_mib']:.0f} at most; plan of 512 groups: the first {p['first_plan_ms']:.0f} ms, then {p['plan_ms']:.0f} ms"
        )
    if "many" in found:
        m, c = found["many"], found["many"]["orchestrator"]
        print(
            f"\n{m['groups']} groups of {m['rollouts']}, {m['in_flight']} in flight: {m['trajectories_s']:.0f} trajectories/s; "
            f"orchestrator {c['early_mib']:.1f} MiB early, {c['late_mib']:.1f} late, {c['mib_per_1000_groups']:+.2f} MiB per 1,000 groups"
        )
        print(
            "with all of them in flight, MiB at most: "
            + ", ".join(f"{n} {v:.0f}" for n, v in m["peak_mib"].items())
        )
    if "verifiers" in found:
        _show_verifiers(found["verifiers"])


def _show_verifiers(v: dict[str, Any]) -> None:
    if "skipped" in v:
        print(f"\nverifiers: {v['skipped']}")
        return
    t = v["theirs"]
    print(
        f"\nrollouts/s, one turn each: triforge {v['ours']['rollouts_s']:.0f} ({v['ours']['rollouts']} rollouts) and "
        f"{v['ours_as_few']['rollouts_s']:.0f} ({v['ours_as_few']['rollouts']}); verifiers {t['version']} "
        f"{t['rollouts_s']:.2f} ({t['good']} of {t['rollouts']} rollouts good); ratio {v['ratio']:.0f}, with as few "
        f"{v['ratio_as_few']:.0f} (wanted: {WANTED_RATIO:g})"
    )


def fell_short(found: dict[str, Any]) -> bool:
    """Whether the ratio to verifiers is not what it should be. The share of the queue alone is only shown."""
    return bool(found.get("verifiers", {}).get("ratio_as_few", WANTED_RATIO) < WANTED_RATIO)


def main() -> int:
    """Print the tables, write JSON; 1 if the ratio to verifiers was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a quick look; its figures say little")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, default=Path("var/bench/control_plane.json"))
    options = parser.parse_args()
    started = time.monotonic()
    options.json.parent.mkdir(parents=True, exist_ok=True)

    def keep(found: dict[str, Any]) -> None:
        options.json.write_text(json.dumps(found, indent=1))

    found = uvloop.run(everything(options.only, options.small, keep))
    show(found)
    print(f"all of it took {time.monotonic() - started:.0f} s")
    keep(found)
    return int(fell_short(found) and not options.small)


if __name__ == "__main__":
    sys.exit(main())
