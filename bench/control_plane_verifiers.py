"""The evaluation loop of `verifiers`, in the environment of `make conformance`, against an engine of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from scripts.openenv_conformance.install import ROOT

_SCRIPT = Path(__file__).with_name("verifiers_eval.py")
_LONGEST_S = 180
CONCURRENCY = 64  # as many as a rollout worker of ours plays at a time


def installed() -> Path | str:
    """The programs of the environment, or a sentence that says why there are none."""
    programs = ROOT / ".venv-verifiers" / "bin"
    if (programs / "vf-eval").is_file():
        return programs
    return "left out: .venv-verifiers is not there; `make conformance` makes it"


def measure(
    programs: Path, folder: Path, engine: str, *, prompts: int, rollouts: int
) -> dict[str, Any]:
    """Rollouts a second of its loop, its programs being installed already."""
    out = folder / "verifiers"
    out.mkdir(exist_ok=True)
    work = out / "work.json"
    work.write_text(
        json.dumps(
            {
                "engine": engine, "prompts": prompts, "rollouts": rollouts, "concurrency": CONCURRENCY, "out": str(out),
            }
        )
    )  # fmt: skip
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(programs / "python"), str(_SCRIPT), str(work)],
        cwd=out, env=env, capture_output=True, text=True, check=False, timeout=_LONGEST_S,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"verifiers failed: {(done.stdout + done.stderr)[-1500:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    if found["good"] != found["rollouts"]:
        raise SystemExit(f"verifiers: {found['good']} of {found['rollouts']} rollouts are good: {done.stderr[-1500:]}")  # fmt: skip
    return found
