"""The trial of a real engine: the contract suite, two steps of the closed loop, and recordings."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from demo.warm_start import smollm2
from scripts.calling import ROOT
from scripts.real_sglang.folders import folders_of
from scripts.real_sglang.install import Install, Tell
from scripts.real_sglang.loop import Client, two_steps
from scripts.real_sglang.server import ADMIN_KEY, API_KEY, serving
from triforge.errors import TriforgeError
from triforge.supervisor.process import ProcessSpec


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of engine: how it is installed, started, called and recorded, and the tests that it has to pass.

    `prepared` returns the folder of the model that it is tried with, from the one of SmolLM2 and a folder for a copy.
    """

    name: str
    about: str
    ensure: Callable[[], Install]
    spec: Callable[[Install, Path, str], ProcessSpec]
    client: Client
    record: Callable[[Install, Path, Path, Tell], Awaitable[None]]
    suite: str
    prepared: Callable[[Path, Path], Path] = lambda model, _: model


def main(kind: Kind) -> int:
    """Build what is missing, run, stop everything; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.real_{kind.name}",
        description=kind.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", default="all", choices=("all", "suite", "loop", "record")
    )
    parser.add_argument(
        "--state", type=Path, default=ROOT / "var" / kind.name, help="logs and stores"
    )
    options = parser.parse_args()
    started = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - started:5.0f} s] {text}\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything, as Ctrl-C does
    options.state.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(_run(kind, options.what, options.state.resolve(), tell))
    except TriforgeError as error:
        tell(f"failed: {error.detail}")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; everything was stopped")
        return 130


async def _run(kind: Kind, what: str, state: Path, tell: Tell) -> int:
    install = await asyncio.to_thread(kind.ensure)
    tell(f"{kind.name} {install.version} for a {'GPU' if install.gpu else 'CPU'}: {install.python}")
    model = kind.prepared(await asyncio.to_thread(smollm2(tell)), state / "model")
    if what == "record":
        await kind.record(install, model, state, tell)
        return 0
    failed = 0
    if what in ("all", "suite"):
        failed = await _suite(kind, install, model, state, tell)
    if what in ("all", "loop") and not failed:
        specs = [kind.spec(install, model, name) for name in ("policy", "reward")]
        failed = await two_steps(specs, kind.client, model, state, tell)
    tell("passed" if not failed else "failed")
    return failed


async def _suite(kind: Kind, install: Install, model: Path, state: Path, tell: Tell) -> int:
    """Return the contract suite in pytest, against a server of its own; pytest's exit status."""
    folders = folders_of(model, state)
    async with serving([kind.spec(install, model, "policy")], state) as (server,):
        tell(
            f"serving {model.name} at {server.url} (log: {server.log}); running the contract suite"
        )
        pytest = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pytest", kind.suite, "-p", "no:xdist", "--timeout", "600",
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "ENGINE_URL": kind.client.scheme + server.url,
                "ENGINE_API_KEY": API_KEY,
                "ENGINE_ADMIN_KEY": ADMIN_KEY,
                "ENGINE_MODEL": str(folders.start),
                "ENGINE_OTHER": str(folders.other),
            },
        )  # fmt: skip
        try:
            return await pytest.wait()
        finally:
            if pytest.returncode is None:
                pytest.kill()
