"""`make test-sglang`: the engine contract and two steps of the closed loop against real, unmodified SGLang.

python -m scripts.real_sglang             everything
python -m scripts.real_sglang suite       the contract suite alone
python -m scripts.real_sglang loop        the closed loop alone
python -m scripts.real_sglang record      write the recordings in tests/contract/sglang anew
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from demo.warm_start import smollm2
from scripts.calling import ROOT
from scripts.real_sglang.folders import folders_of
from scripts.real_sglang.install import Install, Tell, ensure
from scripts.real_sglang.loop import two_steps
from scripts.real_sglang.record import record
from scripts.real_sglang.server import ADMIN_KEY, API_KEY, serving
from triforge.errors import TriforgeError


def main(arguments: list[str] | None = None) -> int:
    """Build what is missing, run, stop everything; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real_sglang",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", default="all", choices=("all", "suite", "loop", "record")
    )
    parser.add_argument(
        "--state", type=Path, default=ROOT / "var" / "sglang", help="logs and stores"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - started:5.0f} s] {text}\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops everything, as Ctrl-C does
    options.state.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(_run(options.what, options.state.resolve(), tell))
    except TriforgeError as error:
        tell(f"failed: {error.detail}")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; everything was stopped")
        return 130


async def _run(what: str, state: Path, tell: Tell) -> int:
    install = await asyncio.to_thread(ensure)
    tell(f"SGLang {install.version} for a {'GPU' if install.gpu else 'CPU'}: {install.python}")
    model = await asyncio.to_thread(smollm2(tell))
    if what == "record":
        await record(install, model, state, tell)
        return 0
    failed = 0
    if what in ("all", "suite"):
        failed = await _suite(install, model, state, tell)
    if what in ("all", "loop") and not failed:
        failed = await two_steps(install, model, state, tell)
    tell("passed" if not failed else "failed")
    return failed


async def _suite(install: Install, model: Path, state: Path, tell: Tell) -> int:
    """Return the contract suite in pytest, against a server of its own; pytest's exit status."""
    folders = folders_of(model, state)
    async with serving(install, model, "policy", logs=state) as (server,):
        tell(
            f"serving {model.name} at {server.url} (log: {server.log}); running the contract suite"
        )
        pytest = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pytest", "tests/contract/engine", "-p", "no:xdist", "--timeout", "600",
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "ENGINE_URL": server.url,
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


if __name__ == "__main__":
    sys.exit(main())
