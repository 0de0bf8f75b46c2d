"""A machine behind OSWorld's control server, in a container of its own or at an address: set up by the task, driven, verified.

    GET  /screenshot                                    a PNG file
    POST /execute {"command": [...], "shell": false}    {"status", "output", "error", "returncode"}
    POST /setup/launch {"command": [...], "shell"}      starts a program and does not wait for it
    POST /file, form field `file_path`                  a file's bytes, 404 where there is none
    POST /setup/upload, form `file_path`, `file_data`   writes a file

Short Python programs with pyautogui, sent to /execute, move mouse and keyboard.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import httpx
from pydantic import JsonValue

from environments.gui import png
from environments.gui.actions import Action, pixels, pyautogui_key
from environments.gui.episode import Computer
from environments.gui.lending import Lease
from environments.osworld.options import Docker, OsworldTask, PlayOptions, SetupStep
from triforge.environments.egress import EgressPolicy
from triforge.errors import ConfigError, EnvError, InputError

_DOCKER_S: Final = 300.0
_LARGEST: Final = 64 * 2**20
_RETRY_S: Final = 0.2
_MAX_SLEEP_S: Final = 60.0
_MAX_DOWNLOAD: Final = 256 * 2**20
_DOWNLOAD_S: Final = 60.0
_BUTTONS: Final = {"left_click": "left", "right_click": "right", "middle_click": "middle"}
_BEGIN: Final = "import pyautogui; pyautogui.FAILSAFE = False; "
_log = logging.getLogger(__name__)

# ---- places -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a machine's control server, and the container that was started for it, if any."""

    url: str
    container: str = ""


def lease_of(options: PlayOptions) -> Lease[Place]:
    """Return a lease of one machine for one episode."""
    docker, names = options.docker, options.machines
    if docker is not None:
        names = [f"{docker.image} {number}" for number in range(docker.at_most)]
    return Lease("osworld: machine", names, lambda name: _start(name, docker), _remove)


def _start(name: str, docker: Docker | None) -> Place:
    if docker is None:
        return Place(name)
    if shutil.which("docker") is None:
        raise ConfigError(
            "environment 'osworld' is to start containers, but docker is not on PATH: apt-get install docker.io, "
            "or name addresses in env_adapter.options.machines"
        )
    container = f"triforge-osworld-{uuid4().hex[:12]}"  # known before it runs, so that it can always be removed
    publish = f"127.0.0.1::{docker.port}"
    run = ["docker", "run", "--detach", "--rm", "--name", container, "--publish", publish]
    try:
        _docker([*run, *docker.arguments, docker.image])
        mapped = _docker(["docker", "port", container, f"{docker.port}/tcp"]).split()
        if not mapped:
            raise EnvError(f"osworld: container {container} publishes no port {docker.port}")
    except BaseException:
        _remove(name, Place("", container), True)
        raise
    return Place(f"http://{mapped[0]}", container)


def _remove(_name: str, place: Place, _sound: bool) -> None:
    """Remove a container; a machine at an address is left as it is."""
    if place.container:
        try:
            _docker(["docker", "rm", "--force", "--volumes", place.container])
        except EnvError as error:
            _log.error("container %s may still run: %s", place.container, error.detail)


def _docker(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (an argument vector, no shell)
            command, capture_output=True, text=True, timeout=_DOCKER_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvError(f"osworld: {' '.join(command[:2])}: {error}") from error
    if done.returncode != 0:
        raise EnvError(f"osworld: {' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


# ---- the control server -----------------------------------------------------------------------------------------


class _TooLargeError(EnvError):
    """A response that is larger than the limit."""


class Machine:
    """A control server by address."""

    def __init__(self, url: str, *, call_s: float, largest: int = _LARGEST) -> None:
        self.url = url.rstrip("/")
        self._largest = largest
        self._client = httpx.Client(base_url=self.url, timeout=call_s)
        self._size = (0, 0)

    def wait(self, seconds: float) -> None:
        """Wait until it answers with a screenshot."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.screenshot()
                return
            except EnvError as error:
                if time.monotonic() >= deadline:
                    raise EnvError(
                        f"osworld: {self.url} is not ready within {seconds:g} s: {error.detail}"
                    ) from error
                time.sleep(_RETRY_S)

    def screenshot(self) -> bytes:
        image = self._call("GET", "/screenshot").content
        try:
            self._size = png.size(image)
        except ValueError as error:
            raise EnvError(f"osworld: {self.url}/screenshot: {error}") from error
        return image

    def run(self, command: str | Sequence[str], *, in_shell: bool) -> dict[str, JsonValue]:
        """Run a command inside the machine; return the server's report."""
        body = {"command": command, "shell": in_shell}
        response = self._call("POST", "/execute", json=body)
        try:
            report = response.json()
        except ValueError as error:
            raise EnvError(f"osworld: {self.url}/execute answers no JSON") from error
        if not isinstance(report, dict):
            raise EnvError(f"osworld: {self.url}/execute answers {str(report)[:80]!r}")
        if report.get("status") == "error":
            raise EnvError(f"osworld: {self.url}/execute: {str(report.get('message'))[:200]}")
        return report

    def launch(self, command: str | Sequence[str], *, in_shell: bool) -> None:
        self._call("POST", "/setup/launch", json={"command": command, "shell": in_shell})

    def read(self, path: str) -> bytes | None:
        """Return a file of at most `largest` bytes; None where there is none."""
        try:
            response = self._call("POST", "/file", absent_ok=True, data={"file_path": path})
        except _TooLargeError:
            return None
        return None if response.status_code == 404 else response.content

    def write(self, path: str, content: bytes) -> None:
        files = {"file_data": (path.rpartition("/")[2] or "file", content)}
        self._call("POST", "/setup/upload", data={"file_path": path}, files=files)

    def act(self, action: Action) -> None:
        if action.kind == "wait":
            time.sleep(action.seconds)
            return
        if self._size == (0, 0):
            self.screenshot()
        code = _BEGIN + program(action, *self._size)
        report = self.run(["python", "-c", code], in_shell=False)
        if report.get("returncode") not in (None, 0):  # not a failure of the agent
            raise EnvError(
                f"osworld: {self.url}: pyautogui failed, is it installed in the machine? {str(report.get('error'))[-200:]}"
            )

    def close(self) -> None:
        self._client.close()

    def _call(
        self, method: str, path: str, *, absent_ok: bool = False, **content: Any
    ) -> httpx.Response:
        held = bytearray()
        try:
            with self._client.stream(method, path, **content) as stream:
                for piece in stream.iter_bytes():
                    held += piece
                    if len(held) > self._largest:
                        raise _TooLargeError(
                            f"osworld: {self.url}{path} answers more than {self._largest} bytes"
                        )
            response = httpx.Response(stream.status_code, content=bytes(held))
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise EnvError(
                f"osworld: {self.url}{path} does not answer: {type(error).__name__}: {error}"
            ) from error
        if response.is_success or (absent_ok and response.status_code == 404):
            return response
        raise EnvError(
            f"osworld: {self.url}{path} answers {response.status_code}: {response.text[:200]!r}"
        )


def program(action: Action, width: int, height: int) -> str:
    """Return the statement of pyautogui that performs an action on a screen of this size; every value is a plain literal."""
    x, y = pixels(action.at, width, height) if action.at is not None else (-1, -1)
    where = f"{x}, {y}" if action.at is not None else ""
    match action.kind:
        case "type":
            return f"pyautogui.write({action.text!a}, interval=0.02)"
        case "key":
            return f"pyautogui.hotkey({', '.join(ascii(pyautogui_key(k)) for k in action.keys)})"
        case "mouse_move":
            return f"pyautogui.moveTo({where})"
        case "left_click_drag":
            return f"pyautogui.dragTo({where}, duration=0.5, button='left')"
        case "double_click":
            return f"pyautogui.doubleClick({where})"
        case "scroll":
            return f"pyautogui.scroll({action.amount}{f', x={x}, y={y}' if where else ''})"
        case _:
            return f"pyautogui.click({where}, button='{_BUTTONS[action.kind]}')"


# ---- a task on a machine ----------------------------------------------------------------------------------------


class MachineComputer(Machine, Computer):
    """A machine that has run a task's `config`; `stop` gives it back, `egress` bounds downloads."""

    def __init__(
        self, task: OsworldTask, options: PlayOptions, lease: Lease[Place], egress: EgressPolicy
    ) -> None:
        super().__init__(lease.begin().url, call_s=options.call_s)
        self._task = task
        self._pause_s = options.pause_s
        self._lease = lease
        self._egress = egress
        try:
            self.wait(options.start_s)
            self._set_up(task.config)
        except BaseException:
            self.stop()
            raise

    def act(self, action: Action) -> None:
        super().act(action)
        time.sleep(self._pause_s)

    def settle(self) -> None:
        """Run the evaluator's `postconfig`."""
        self._set_up(self._task.evaluator.postconfig)

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """Return a value that an evaluator names; None for a missing file."""
        kind = spec.get("type")
        if kind == "rule":
            return spec.get("rules")
        if kind == "vm_file":
            content = self.read(_word(spec, "path", "a vm_file"))
            return None if content is None else content.decode("utf-8", "replace")
        if kind == "cloud_file":
            return self._download(_word(spec, "path", "a cloud_file")).decode("utf-8", "replace")
        report = self.run(_command(spec), in_shell=bool(spec.get("shell")))
        return str(report.get("error" if kind == "vm_command_error" else "output") or "")

    def stop(self) -> None:
        self.close()
        self._lease.end(sound=True)

    def _set_up(self, steps: Iterable[SetupStep]) -> None:
        for step in steps:
            given, in_shell = step.parameters, bool(step.parameters.get("shell"))
            match step.type:
                case "command" | "execute":
                    self.run(_command(given), in_shell=in_shell)
                case "launch":
                    self.launch(_command(given), in_shell=in_shell)
                case "open":
                    self.launch(["xdg-open", _word(given, "path", "open")], in_shell=False)
                case "sleep":
                    time.sleep(_seconds(given))
                case "upload_file":
                    content = _word(given, "content", "upload_file").encode()
                    self.write(_word(given, "path", "upload_file"), content)
                case "download":
                    self._fetch(given)

    def _fetch(self, given: Mapping[str, JsonValue]) -> None:
        files = given.get("files")
        for file in files if isinstance(files, list) else []:
            if not isinstance(file, dict):
                raise InputError("osworld config: download: files are objects with url and path")
            content = self._download(_word(file, "url", "download"))
            self.write(_word(file, "path", "download"), content)

    def _download(self, url: str) -> bytes:
        """Fetch a file from the web in this process: the machine may have no network."""
        fetched = self._egress.fetch(url, timeout_s=_DOWNLOAD_S, largest=_MAX_DOWNLOAD)
        return asyncio.run(fetched)  # each episode has a thread of its own


def _seconds(given: Mapping[str, JsonValue]) -> float:
    seconds = given.get("seconds", 1)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SLEEP_S:
        raise InputError(f"osworld config: sleep: given {seconds!r} seconds, expected 0 to 60")
    return seconds


def _command(given: Mapping[str, JsonValue]) -> str | list[str]:
    command = given.get("command")
    if isinstance(command, str) and command:
        return command
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return [str(word) for word in command]
    raise InputError(f"osworld: command: given {command!r}, expected a text or a list of texts")


def _word(given: Mapping[str, JsonValue], name: str, what: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"osworld: {what} needs {name!r}, given {value!r}")
    return value
