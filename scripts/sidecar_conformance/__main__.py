# ruff: noqa: T201 (a command that prints)
"""`make conformance`, its part about the sidecar: the whole scripts of docs/sidecar.md, with the real packages.

    python -m scripts.sidecar_conformance            runs them; the sidecar is killed in the middle, and they go on
    python -m scripts.sidecar_conformance --record   also writes their first requests and answers to tests/contract/sidecar/

The judge and the rewriter are scripted. TRL runs in `.venv-trl`; what it lacks of ours is found behind its own packages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from scripts.calling import ROOT
from scripts.virtual_environments import ensure_trl
from tests.service.sidecar_services import CONFIG, Deployment
from triforge.cli.model_folders import model_folder
from triforge.environments import registry
from triforge.types import GenerateSpec

_PAGE: Final = ROOT / "docs" / "sidecar.md"
_SCRIPT: Final = r"<!-- example: {}\.py -->\n```python\n(.*?)```"
_RUN: Final = "import runpy, sys; sys.path.append(sys.argv[2]); runpy.run_path(sys.argv[1], run_name='__main__')"
_LIMIT_S: Final = 1800.0
_KEPT: Final = 2  # tasks and rollouts of a message in a recorded exchange


async def run(name: str, python: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a script of the page against a sidecar that dies once; return the exchange. AssertionError: something did not move."""
    beginner = getattr(registry.family("household"), "beginner")  # noqa: B009 (of the family, not of the protocol)
    model = model_folder(
        "policy", "tiny", tell=print, env="household", generate=beginner.generate, options=beginner.options
    )  # fmt: skip
    found = re.search(_SCRIPT.format(name), _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{_PAGE} has no {name}.py"
    script = folder / f"{name}.py"
    script.write_text(found[1], encoding="utf-8")
    tasks = GenerateSpec(count=32, seed=1, options=beginner.generate)
    deployment = Deployment(folder, generate=tasks)
    await deployment.start()
    played = CONFIG["env_adapter"] | {"rollouts": 8, "options": beginner.options}
    begun = deployment.submit(env_adapter=played, run=CONFIG["run"] | {"groups_per_step": 4})
    given = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1", "TRIFORGE_ENV_ADAPTER_URL": deployment.url,
        "MODEL": str(model),
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        python, "-c", _RUN, script, sysconfig.get_path("purelib"), env=given, cwd=folder
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            while deployment.store.get(begun.id).step < 2 and process.returncode is None:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.5)
            await deployment.kill()
            await asyncio.sleep(3.0)
            await deployment.start()
            assert await process.wait() == 0, f"{name}.py ended with {process.returncode}"
        state = deployment.store.get(begun.id)
        assert (state.status, state.step > 2, state.reward_version > 2) == ("running", True, True), state  # fmt: skip
        print(f"{name}: {state.step} steps, judge {state.reward_version}")
        return deployment.exchange
    finally:
        if process.returncode is None:
            process.kill()
        await deployment.close()


def shortened(exchange: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first answered draw and report, cut to their first tasks and rollouts."""
    kept: list[dict[str, Any]] = []
    for path in ("draw", "rollouts"):
        own = [one for one in exchange if one["path"].endswith(path) and one["status"] == 200]
        kept += own[:1]
    for one in kept:
        for message in (one["body"], one["reply"]):
            for name in message.keys() & {"tasks", "rollouts", "groups"}:
                message[name] = message[name][:_KEPT]
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.sidecar_conformance")
    parser.add_argument("--record", action="store_true", help="write the exchanges for the tests")
    record = parser.parse_args().record
    for name, python in {"in_trl": ensure_trl()}.items():
        with tempfile.TemporaryDirectory() as folder:
            exchange = asyncio.run(run(name, python, Path(folder)))
        if record:
            golden = ROOT / "tests" / "contract" / "sidecar" / f"{name}.json"
            golden.write_text(json.dumps(shortened(exchange), indent=1) + "\n")
            print(f"wrote {golden}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
