# ruff: noqa: T201 (a command that prints)
"""`make conformance`, its part about the sidecar: the whole scripts of docs/sidecar.md, with the real packages.

    python -m scripts.sidecar_conformance [NAME...]  runs them; the sidecar is killed in the middle, and they go on
    python -m scripts.sidecar_conformance --record   also writes their first requests and answers to tests/contract/sidecar/

`in_trl` also trains with and without the sidecar, and compares; `routes` is schemathesis. The judge and the rewriter are scripted,
and so is the policy of verifiers. Each package runs in an environment of its own (`.venv-trl`, `.venv-verifiers`, `.venv-verl`,
`.venv-schemathesis`); what it lacks of ours is found behind its own packages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from scripts.calling import ROOT
from scripts.sidecar_conformance.expert import Expert
from scripts.sidecar_conformance.programs import BEGINNER, TASKS, begin, beginner_folder
from scripts.sidecar_conformance.routes import fuzz
from scripts.sidecar_conformance.same_rollouts import compare
from scripts.virtual_environments import (
    ensure_files,
    ensure_schemathesis,
    ensure_trl,
    ensure_verl,
)
from tests.service.sidecar_services import CONFIG, Deployment
from tests.service.test_policy_http import serving

_PAGE: Final = ROOT / "docs" / "sidecar.md"
_SCRIPT: Final = r"<!-- example: {}\.py -->\n```python\n(.*?)```"
_ROUTES: Final = "routes"
_LIMIT_S: Final = 1800.0
_KEPT: Final = 2  # tasks and rollouts of a message in a recorded exchange


@dataclass(frozen=True)
class Trainer:
    """A package: its interpreter, the size of a step, and the program that imports the page's script, where that is none itself."""

    python: Callable[[], Path]
    groups: int
    rollouts: int
    program: Path | None = None


_HERE: Final = Path(__file__).parent
TRAINERS: Final = {
    "in_trl": Trainer(ensure_trl, groups=4, rollouts=8),
    "in_verifiers": Trainer(partial(ensure_files, "verifiers"), 2, 4, _HERE / "prime_loop.py"),
    "in_verl": Trainer(ensure_verl, 2, 8, _HERE / "verl_loop.py"),
}


async def run(name: str, trainer: Trainer, folder: Path) -> list[dict[str, Any]]:
    """Run a script of the page against a sidecar that dies once; return the exchange. AssertionError: something did not move."""
    model, python = beginner_folder(), trainer.python()
    found = re.search(_SCRIPT.format(name), _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{_PAGE} has no {name}.py"
    script = folder / f"{name}.py"
    script.write_text(found[1], encoding="utf-8")
    deployment = Deployment(folder, generate=TASKS)
    await deployment.start()
    played = CONFIG["env_adapter"] | {"rollouts": trainer.rollouts, "options": BEGINNER.options}
    begun = deployment.submit(env_adapter=played, run=CONFIG["run"] | {"groups_per_step": trainer.groups})  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(deployment.close)
        policy, _ = await stack.enter_async_context(serving(Expert(deployment).app()))
        process = await begin(
            folder, stack, python, trainer.program or script, TRIFORGE_ENV_ADAPTER_URL=deployment.url,
            MODEL=str(model), OPENAI_BASE_URL=f"{policy}/v1", OPENAI_API_KEY="unasked",
        )  # fmt: skip
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([_ROUTES, *TRAINERS]))
    given = parser.parse_args()
    names, record = given.names or [_ROUTES, *TRAINERS], given.record
    for name in names:
        if name == _ROUTES:
            for keyed in (False, True):
                asyncio.run(fuzz(ensure_schemathesis(), keyed=keyed))
            continue
        with tempfile.TemporaryDirectory() as folder:
            exchange = asyncio.run(run(name, TRAINERS[name], Path(folder)))
        if name == "in_trl":
            asyncio.run(compare(ensure_trl()))
        if record:
            golden = ROOT / "tests" / "contract" / "sidecar" / f"{name}.json"
            golden.write_text(json.dumps(shortened(exchange), indent=1) + "\n")
            print(f"wrote {golden}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
