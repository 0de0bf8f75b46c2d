"""Environments of the package `verifiers` in sessions: rewards and metrics come back, and every call is a turn.

Four of its own making: a taskset of one answer with the harness `null`, the same with the harness `bash`, whose tool is called, the environment `best-of-n`
over it, and the taskset `openenv` before a server of ours, played over several turns. (The registry's tasksets ask for versions of
the package before 0.4.)
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from scripts.calling import ROOT
from scripts.openenv_conformance.__main__ import served
from scripts.virtual_environments import CONFORMANCE, ensure_files
from tests.service.session_services import Services, services

_PLAYER = ROOT / "environments" / "verifiers" / "player.py"
_LIMIT_S = 180.0
_SUMS = {"taskset": {"id": "sums", "count": 1}}
_BASH = '<tool_call>\n{"name":"bash","arguments":{"command":"echo the sum is 1"}}\n</tool_call>'
Env = dict[str, Any]


def _agent(harness: str, **more: Any) -> Env:
    return {"harness": {"id": harness}, "runtime": {"type": "subprocess"}, **more}


def environments(url: str) -> dict[str, tuple[Env, list[str], dict[str, Any], int]]:
    """By name: the block of configuration, what the model says, the reward that this is worth, and how many turns it is."""
    world = {"id": "openenv", "base_url": url, "resets": [{"seed": 0}]}
    return {
        "sums, harness null": (
            {**_SUMS, "agent": _agent("null")}, ["It is 1."], {"score": 1.0, "metrics": {"right": 1.0}}, 1,
        ),
        "sums, harness bash": (
            {**_SUMS, "agent": _agent("bash")}, [_BASH, "It is 1."], {"score": 1.0, "metrics": {"right": 1.0}}, 2,
        ),
        "sums, best-of-n": (
            {"id": "best-of-n", "n": 2, **_SUMS, "agent": _agent("null")}, ["It is 1.", "I cannot say."],
            {"score": 0.5, "metrics": {"right": 0.5, "best": 0.5, "pass_at_n": 1.0}}, 2,
        ),
        "openenv": (
            {"taskset": world, "player": _agent("null", max_turns=3)}, ["up", "down", "up"], {"score": 0.0}, 3,
        ),
    }  # fmt: skip


def _toml(value: Env, name: str = "") -> str:
    """Return a table with its tables; keys of ours are bare words, values JSON and TOML alike."""
    plain = [f"{key} = {_value(one)}" for key, one in value.items() if not isinstance(one, dict)]
    inner = [
        _toml(one, f"{name}.{key}".lstrip("."))
        for key, one in value.items()
        if isinstance(one, dict)
    ]
    return "\n".join([*([f"[{name}]"] if name else []), *plain, *inner])


def _value(one: Any) -> str:
    if isinstance(one, list):
        return f"[{', '.join(map(_value, one))}]"
    if isinstance(one, dict):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in one.items()) + "}"
    return json.dumps(one)


async def play(both: Services, python: Path, env: Env, says: list[str], folder: Path) -> tuple[Any, int]:  # fmt: skip
    """Return the reward of one episode, played as `triforge agent run --keep` has it played, and how many turns were sampled."""
    made = await both.begin()
    both.says(*says)
    (folder / "env.toml").write_text(_toml(env))
    path = f"{python.parent}:{os.environ['PATH']}"
    # for `uv`, and the taskset `sums`
    inherited = {**os.environ, "PATH": path, "PYTHONPATH": str(CONFORMANCE)}
    rows = subprocess.run(  # noqa: ASYNC221, S603
        [python, _PLAYER, folder / "env.toml", "1"], env=inherited, check=True, capture_output=True, text=True
    )  # fmt: skip
    (folder / "task.json").write_text(rows.stdout)
    given = {"TRIFORGE_TASK": str(folder / "task.json"), "OPENAI_BASE_URL": made.base_url, "OPENAI_API_KEY": made.key}  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        python, _PLAYER, env=inherited, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_LIMIT_S):
            printed, _ = await process.communicate(json.dumps(given).encode() + b"\n")
    finally:
        if process.returncode is None:
            process.kill()
    return json.loads(printed or '{"error": "it ended before it answered"}'), len(await both.turns(made))  # fmt: skip


async def hosted(folder: Path) -> list[str]:
    """Return what is wrong with each environment; nothing where it held."""
    python = ensure_files("verifiers")
    wrong = []
    with served("sokoban") as url:
        for number, (name, one) in enumerate(environments(url).items()):
            env, says, reward, turns = one
            (place := folder / str(number)).mkdir()
            async with services(place) as both:
                found, sampled = await play(both, python, env, says, place)
            fine = sampled == turns and reward.items() <= found.items()
            printed = "held" if fine else f"{found} after {sampled} turns, expected {reward} after {turns}"  # fmt: skip
            print(f"verifiers, {name}: {printed}", flush=True)
            wrong += [] if fine else [name]
    return wrong
