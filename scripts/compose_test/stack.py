"""The stack under test: a compose project of its own, its APIs, and what one can do to its containers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from demo.prepare import settings_of
from demo.settings import SMOLLM2_FOLDER
from scripts.calling import ROOT, Tell, call
from scripts.compose_test import walk_through
from scripts.compose_test.engine import Docker
from triforge.cli.model_folders import cache_folder
from triforge.errors import UnavailableError
from triforge.supervisor.ports import free_port

PROJECT = "triforge-test"
_NETWORK = f"{PROJECT}_default"
_FACTS = ROOT / "chaos" / "facts.py"
_BUILD_S, _UP_S, _DOWN_S = 3600.0, 1500.0, 300.0
_API_S = 30.0
# one service an image; the others of the same image find it built
_BUILT = ("policy-model", "env-adapter", "reward", "trainer", "dashboard", "learner-policy", "engine-policy", "models")  # fmt: skip
_LOST = ("postgres", "artifacts", "valkey", "prometheus")
_T = TypeVar("_T")


class Stack:
    def __init__(self, docker: Docker, folder: Path, tell: Tell) -> None:
        self._docker, self.folder, self._tell = docker, folder, tell
        self.key = ""
        self._tag = os.environ.get("TRIFORGE_TAG", "test")
        self.ports = {api: free_port() for api in ("model", "pools", "runs", "dashboard")}
        docker.environment |= _fresh_secrets(folder / "secrets.env") | {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "TRIFORGE_TAG": self._tag,
            "TRIFORGE_REVISION": call(["git", "rev-parse", "HEAD"]).strip(),
            "TRIFORGE_POLICY_MODEL_PORT": str(self.ports["model"]),
            "TRIFORGE_ENV_ADAPTER_PORT": str(self.ports["pools"]),
            "TRIFORGE_TRAINER_PORT": str(self.ports["runs"]),
            "TRIFORGE_DASHBOARD_PORT": str(self.ports["dashboard"]),
        }

    def compose(self, *words: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run `docker compose WORDS` on this project."""
        return self._docker("compose", *words, stdin=stdin, timeout_s=timeout_s)

    def script(self, name: str, *arguments: str, timeout_s: float = 900.0) -> float:
        """Run one of `scripts/`, as an operator does; returns the seconds.

        Raises:
            UnavailableError: it failed.
        """
        began = time.monotonic()
        call([str(ROOT / "scripts" / name), *arguments], environment=self._docker.environment, timeout_s=timeout_s)  # fmt: skip
        return round(time.monotonic() - began, 1)

    def set(self, **variables: str) -> None:
        """Variables for the compose files, from now on."""
        self._docker.environment |= variables

    def build(self, pip_args: str) -> float:
        """Build every image; returns the seconds."""
        began = time.monotonic()
        self.set(PIP_ARGS=pip_args)
        # in turn: at once, each would make the layers that they share for itself
        for service in _BUILT:
            self.compose("--progress", "plain", "build", service, timeout_s=_BUILD_S)
        return time.monotonic() - began

    def image_sizes(self) -> dict[str, int]:
        """MB of each image of the project."""
        lines = self._docker("images", "--format", "{{.Repository}}:{{.Tag}}={{.ID}}").splitlines()
        names = sorted(
            {line.split("=")[0] for line in lines if line.split("=")[0].endswith(f":{self._tag}")}
        )
        sizes = self._docker("image", "inspect", "--format", "{{.Size}}", *names).split()
        return {name: int(size) // 10**6 for name, size in zip(names, sizes, strict=True)}

    def take_models(self) -> bool:
        """Put the demo's models of this machine's cache into the volume; without them the stack makes them itself."""
        wanted = (Path("demo") / settings_of(1).digest(), Path(SMOLLM2_FOLDER))
        home = cache_folder()
        if not ((home / wanted[0] / "done").is_file() and (home / wanted[1]).is_dir()):
            return False
        staged = self.folder / "models"
        shutil.rmtree(staged, ignore_errors=True)
        for path in wanted:
            skip = shutil.ignore_patterns("*.jsonl", "logs", "*-data", "*-blank")
            shutil.copytree(home / path, staged / "cache" / "triforge" / path, ignore=skip)
        self.put_models(staged)
        return True

    def put_models(self, staged: Path) -> None:
        """Copy what lies in a folder of this machine into the volume of models; the folder is removed."""
        copy = "cp -r /from/. /models/ && chown -R 10001:10001 /models"
        self.compose(
            "run", "--rm", "--no-deps", "--user", "0:0", "--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE", "-v", f"{staged}:/from:ro",
            "--entrypoint", "sh", "models", "-c", copy,
        )  # fmt: skip
        shutil.rmtree(staged, ignore_errors=True)

    def up(self) -> float:
        """Start everything and wait until it is healthy; returns the seconds."""
        began = time.monotonic()
        self.compose("up", "-d", "--wait", "--no-build", timeout_s=_UP_S)
        return time.monotonic() - began

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "-t", "5", timeout_s=_DOWN_S)  # fmt: skip

    def stop(self) -> None:
        """Remove the containers of the profiles that are on, and no volume."""
        self.compose("down", "-t", "5", timeout_s=_DOWN_S)

    def wipe(self) -> None:
        """Lose everything but the models: containers, the database, the artifacts, what is in flight, the metrics."""
        self.stop()
        self._docker("volume", "rm", *(f"{PROJECT}_{name}" for name in _LOST))

    def logs(self, path: Path) -> None:
        """Write all containers' output to a file."""
        path.write_text(self.compose("logs", "--no-color", "--timestamps", timeout_s=_DOWN_S))

    # ---- containers ----

    def services(self) -> list[str]:
        names = self.compose("ps", "--services", "--status", "running").split()
        return sorted(names)

    def states(self, services: Sequence[str]) -> dict[str, dict[str, Any]]:
        """`State` of each service's container, as `docker inspect` has it."""
        found = json.loads(self._docker("inspect", *(_container(name) for name in services)))
        return {name: document["State"] for name, document in zip(services, found, strict=True)}

    def started_at(self, services: Sequence[str]) -> float:
        """When the last of these containers was started, in seconds since 1970."""
        moments = (state["StartedAt"] for state in self.states(services).values())
        return max(datetime.fromisoformat(text).timestamp() for text in moments)

    def are_well(self, before: Mapping[str, str]) -> bool:
        """Whether each container is healthy, and was started after the moment given for it (a `StartedAt`, or empty)."""
        return all(
            state["Running"]
            and state["StartedAt"] != before[name]
            and state.get("Health", {}).get("Status", "healthy") == "healthy"
            for name, state in self.states(list(before)).items()
        )

    def kill(self, service: str) -> None:
        """SIGKILL the container's first process, as a crash would; the engine does not take that for our wish."""
        try:
            os.kill(self.states([service])[service]["Pid"], signal.SIGKILL)
        # not root, or an engine in a machine of its own
        except (PermissionError, ProcessLookupError):
            self._docker("kill", "-s", "KILL", _container(service))
            self._docker("start", _container(service))

    def cut_off(self, service: str) -> None:
        self._docker("network", "disconnect", _NETWORK, _container(service))

    def join(self, service: str) -> None:
        self._docker("network", "connect", "--alias", service, _NETWORK, _container(service))

    def restart(self, service: str) -> None:
        """`docker compose restart`: SIGTERM, and up again."""
        self.compose("restart", "-t", "10", service)

    # ---- what was kept ----

    def facts(self) -> dict[str, Any]:
        """Return what the database, the artifact store, the queues and the policy services hold, read inside of the stack."""
        out = self.compose("exec", "-T", "trainer", "python", "-", stdin=_FACTS.read_text(), timeout_s=300)  # fmt: skip
        *runs, rest = (json.loads(line) for line in out.splitlines())
        return {"runs": runs, **rest}

    # ---- APIs ----

    def take_key(self) -> None:
        """Make an API key, as an operator does; the APIs ask for it."""
        made = self.compose("exec", "-T", "trainer", "triforge", "key", "create", "compose-test")
        self.key = made.split()[-1]

    def by_hand(self, *, within_s: float) -> tuple[str, float]:
        """Run the lines of docs/train.md#over-rest; returns the run that they watched to its end, and the seconds.

        Raises:
            UnavailableError: one of them failed, or the run that they watch does not end.
        """
        script = self.folder / "walk_through.sh"
        script.write_text(f"cd {self.folder}\n{walk_through.by_hand(self.ports)}")
        began = time.monotonic()
        environment = {**self._docker.environment, "TRIFORGE_KEY": self.key}
        printed = call(["bash", str(script)], environment=environment, timeout_s=within_s)
        (self.folder / "walk_through.log").write_text(printed)
        return printed.split()[-1], round(time.monotonic() - began, 1)

    def get(self, api: str, path: str) -> Any:
        """GET of a published API, `pools` or `runs`."""
        return json.loads(self._ask(api, path, None))

    def save(self, api: str, path: str, target: Path) -> None:
        target.write_bytes(self._ask(api, path, None))

    def post(self, api: str, path: str, body: dict[str, Any], *, key: str = "") -> Any:
        """POST of JSON to a published API; the same `key` makes nothing twice."""
        return json.loads(self._ask(api, path, json.dumps(body).encode(), key))

    def _ask(self, api: str, path: str, body: bytes | None, key: str = "") -> bytes:
        url = f"http://127.0.0.1:{self.ports[api]}{path}"
        request = urllib.request.Request(url, data=body)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.key}")
        if key:
            request.add_header("Idempotency-Key", key)
        try:
            with urllib.request.urlopen(request, timeout=_API_S) as answer:  # noqa: S310 (our own API)
                given: bytes = answer.read()
                return given
        except urllib.error.HTTPError as error:
            printed = error.read(2000).decode(errors="replace")
            raise UnavailableError(f"{path}: {error.code} {printed}") from error
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"{path}: {error}") from error


def patiently(ask: Callable[[], _T], *, within_s: float) -> _T:
    """Repeat a question while its API or container is away."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _fresh_secrets(path: Path) -> dict[str, str]:
    """Return what `make env` writes, new for this test."""
    path.unlink(missing_ok=True)
    call([str(ROOT / "scripts" / "write_env.sh"), str(path)])
    pairs = (line.partition("=") for line in path.read_text().splitlines() if line[:1] != "#")
    return {name: value for name, _, value in pairs}


def _container(service: str) -> str:
    return f"{PROJECT}-{service}-1"
