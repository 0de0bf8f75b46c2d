"""`make conformance`, its part about environments: programs of others against our APIs.

    python -m scripts.openenv_conformance

1. `openenv validate` of openenv-core 0.3.0 against `triforge env serve` of three families: six criteria each.
2. `vf-eval` of `verifiers` 0.4.0 asks our policy endpoint for sums.
3. It plays episodes with our policy endpoint as the model and our environment endpoint as the world: a third party joins
   the two.

4. Harbor's own validators read the task folders of configs/pools/harbor; they need Python 3.12 or newer.

The model has random weights, so nothing is asked of its rewards.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.calling import ROOT
from scripts.virtual_environments import CONFORMANCE as HERE
from scripts.virtual_environments import ensure_files
from tests.one_process.reading_model import build_reading_model
from triforge.errors import TriforgeError, UnavailableError

FAMILIES = ("household", "sokoban", "shop")
CRITERIA, EPISODES, TURNS = 6, 3, 4
SUMS = 8
_START_S = 600.0  # of a deployment, on a machine that has other work, too

EVALUATION = """
model = "policy"
num_rollouts = {rollouts}
push = false

[client]
type = "eval"
base_url = "{policy}/v1"
api_key_var = "OPENAI_API_KEY"

[sampling]
max_tokens = 8
temperature = 1.0
"""
ALONE = """
[env.taskset]
id = "sums"
count = {count}

[env.agent.harness]
id = "null"

[env.agent.runtime]
type = "subprocess"
"""
JOINED = """
[env.taskset]
id = "openenv"
base_url = "{environment}"
resets = [{resets}]

[env.player]
max_turns = {turns}

[env.player.harness]
id = "null"

[env.player.runtime]
type = "subprocess"
"""


@contextmanager
def served(family: str) -> Iterator[str]:
    """Yield the address of a family behind `triforge env serve`."""
    command = [sys.executable, "-m", "triforge", "env", "serve", family, "--port", "0"]
    with _running([*command, "--count", "8"], cwd=ROOT) as server:
        assert server.stdout is not None
        first_line = server.stdout.readline()
        if " at http://" not in first_line:
            raise UnavailableError(f"triforge env serve {family} did not start: {first_line}")
        yield first_line.rpartition(" at ")[2].strip()


@contextmanager
def policy(folder: Path) -> Iterator[str]:
    """Yield the address of the policy endpoint of a deployment with tiny models."""
    model = build_reading_model(folder / "model")
    roles = (f'[models.{role}]\npath = "{model}"\n' for role in ("policy", "reward", "rewriter"))
    (folder / "run.toml").write_text("\n".join(roles))
    state = folder / "state"
    state.mkdir()
    command = [sys.executable, "-m", "triforge", "up", "--auto-ports"]
    command += ["-c", str(folder / "run.toml"), "--state", str(state)]
    with _running(command, cwd=ROOT) as deployment:
        deadline = time.monotonic() + _START_S
        while not (state / "addresses.json").is_file():
            if deployment.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"the deployment did not start: {last_words(state)}")
            time.sleep(0.2)
        yield str(json.loads((state / "addresses.json").read_text())["policy_model_url"])


def last_words(state: Path) -> str:
    """Return the end of each log of a deployment; its folder goes away with us."""
    logs = sorted(state.rglob("*.log"))
    ends = (f"{log.name}: {log.read_text(errors='replace')[-400:].strip()}" for log in logs)
    return "\n".join(ends) or "it has written no log"


@contextmanager
def _running(command: list[str], *, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def validate(programs: Path, url: str) -> tuple[int, list[str]]:
    """How many criteria a server passes, and which it fails."""
    command = [str(programs / "openenv"), "validate", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    text = done.stdout[done.stdout.find("{") :]
    try:
        summary = json.loads(text)["summary"]
    except (ValueError, KeyError):
        raise UnavailableError(f"openenv validate: {(done.stdout + done.stderr)[-600:]}") from None
    return int(summary["passed_count"]), list(summary["failed_criteria"])


def ask_alone(programs: Path, folder: Path, policy: str) -> list[dict[str, Any]]:
    """Return what `verifiers` recorded of sums, two answers each."""
    document = EVALUATION.format(policy=policy, rollouts=2) + ALONE.format(count=SUMS)
    return evaluate(programs, folder / "alone", document)


def join(programs: Path, folder: Path, policy: str, environment: str) -> list[dict[str, Any]]:
    """Return what `verifiers` recorded of its episodes."""
    resets = ", ".join(f"{{seed = {seed}}}" for seed in range(EPISODES))
    world = JOINED.format(environment=environment, resets=resets, turns=TURNS)
    document = EVALUATION.format(policy=policy, rollouts=1) + world
    return evaluate(programs, folder / "joined", document)


def evaluate(programs: Path, folder: Path, document: str) -> list[dict[str, Any]]:
    """Run `vf-eval` on a document in a new folder; the episodes that it recorded."""
    folder.mkdir()
    (folder / "evaluation.toml").write_text(document)
    env = {
        **os.environ,
        "OPENAI_API_KEY": "none",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE),  # for the taskset `sums`
    }
    command = [str(programs / "vf-eval"), "@", "evaluation.toml", "--no-rich"]
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    files = sorted(folder.glob("outputs/*/traces.jsonl"))
    if done.returncode or not files:
        raise UnavailableError(f"vf-eval failed: {(done.stdout + done.stderr)[-800:]}")
    return [json.loads(line) for line in files[-1].read_text().splitlines()]


def judged(what: str, episodes: list[dict[str, Any]], wanted: int) -> bool:
    """Whether all episodes are there and none failed; says it."""
    fine = [
        e for e in episodes if e["ok"] and e["traces"] and e["traces"][0]["num_output_tokens"] > 0
    ]
    say(f"{what}: {len(fine)} of {wanted} episodes")
    for episode in episodes:
        if episode not in fine:
            say(f"  {json.dumps(episode['errors'])[:400]}")
    return len(fine) == wanted == len(episodes)


def newer_python() -> str | None:
    """Return a Python that Harbor can be installed for, if there is one here."""
    names = [f"python3.{minor}" for minor in (14, 13, 12)]
    places = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    for found in [*map(shutil.which, names), *map(str, places)]:
        asked = [found or "false", "--version"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:  # noqa: S603
            return found
    return None


def harbor() -> bool:
    """Whether Harbor's validators take what is ours; says it. True without a Python for them, which it says, too."""
    python = newer_python()
    if python is None:
        say("harbor: not run, it needs Python 3.12 or newer")
        return True
    files = sorted(map(str, (ROOT / "configs" / "pools" / "harbor").iterdir()))
    command = [str(ensure_files("harbor", python)), str(HERE / "harbor_files.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    say((done.stdout + done.stderr[-600:]).rstrip())
    return done.returncode == 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Print what was seen; 1 when a criterion or an episode fails."""
    good = True
    openenv = ensure_files("openenv").parent
    for family in FAMILIES:
        with served(family) as url:
            passed, failed = validate(openenv, url)
        good &= passed == CRITERIA and not failed
        say(f"openenv validate, {family}: {passed} of {CRITERIA} {' '.join(failed)}".rstrip())
    good &= harbor()
    verifiers = ensure_files("verifiers").parent
    with tempfile.TemporaryDirectory() as name, served("sokoban") as url:
        folder = Path(name)
        with policy(folder) as served_policy:
            alone = ask_alone(verifiers, folder, served_policy)
            joined = join(verifiers, folder, served_policy, url)
    good &= judged("verifiers, policy alone", alone, 2 * SUMS)
    good &= judged("verifiers, policy and environment joined", joined, EPISODES)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TriforgeError as error:
        sys.exit(f"conformance: {error.detail}")
