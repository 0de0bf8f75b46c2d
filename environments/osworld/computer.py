"""A machine as the `Computer` of one episode: set up by the task, verified by what the control server says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pydantic import JsonValue

from environments.gui.actions import Action
from environments.osworld.machine import Machine
from environments.osworld.options import OsworldTask, PlayOptions, SetupStep
from environments.osworld.providers import Lease
from triforge.environments.egress import Reach
from triforge.errors import InputError

_MAX_SLEEP_S: Final = 60.0
_MAX_DOWNLOAD: Final = 256 * 2**20
_DOWNLOAD_S: Final = 60.0


class MachineComputer:
    """A machine that has carried out a task's `config`.

    Args:
        task: the task.
        options: where machines come from.
        lease: the episode's right to one; `stop` gives it back.
        reach: which files of the web may be fetched.
    """

    def __init__(self, task: OsworldTask, options: PlayOptions, lease: Lease, reach: Reach) -> None:
        self._task = task
        self._options = options
        self._lease = lease
        self._reach = reach
        self._machine = Machine(lease.begin(), call_s=options.call_s)
        try:
            self._machine.wait(options.start_s)
            self._set_up(task.config)
        except BaseException:
            self.stop()
            raise

    def act(self, action: Action) -> None:
        """Perform an action and give the machine time to show it."""
        self._machine.act(action)
        time.sleep(self._options.pause_s)

    def screenshot(self) -> bytes:
        """The screen as a PNG file."""
        return self._machine.screenshot()

    def listing(self) -> str:
        """Nothing: a machine is seen, not read."""
        return ""

    def overrun(self) -> str:
        """Nothing: a machine bounds itself."""
        return ""

    def settle(self) -> None:
        """Carry out the evaluator's `postconfig`."""
        self._set_up(self._task.evaluator.postconfig)

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """What an evaluator asks for; a file that is not there is None."""
        kind = spec.get("type")
        if kind == "rule":
            return spec.get("rules")
        if kind == "vm_file":
            found = self._machine.read(_word(spec, "path", "a vm_file"))
            return None if found is None else found.decode("utf-8", "replace")
        if kind == "cloud_file":
            return self._download(_word(spec, "path", "a cloud_file")).decode("utf-8", "replace")
        output, error = self._machine.run(
            _command(spec.get("command")), in_shell=bool(spec.get("shell"))
        )
        return error if kind == "vm_command_error" else output

    def stop(self) -> None:
        """Give the machine back. Idempotent."""
        self._machine.close()
        self._lease.end()

    def _set_up(self, steps: Iterable[SetupStep]) -> None:
        for step in steps:
            if step.type == "download":
                self._fetch(step.parameters)
            else:
                _STEPS[step.type](self._machine, step.parameters)

    def _fetch(self, given: Mapping[str, JsonValue]) -> None:
        files = given.get("files")
        for file in files if isinstance(files, list) else []:
            if not isinstance(file, dict):
                raise InputError("osworld config: download: files are objects with url and path")
            content = self._download(_word(file, "url", "download"))
            self._machine.write(_word(file, "path", "download"), content)

    def _download(self, url: str) -> bytes:
        """A file from the web, fetched by us: the machine may have no network."""
        fetched = self._reach.fetch(url, timeout_s=_DOWNLOAD_S, largest=_MAX_DOWNLOAD)
        return asyncio.run(fetched)  # we are in a thread of our own


def _execute(machine: Machine, given: Mapping[str, JsonValue]) -> None:
    machine.run(_command(given.get("command")), in_shell=bool(given.get("shell")))


def _launch(machine: Machine, given: Mapping[str, JsonValue]) -> None:
    machine.launch(_checked(given.get("command")), in_shell=bool(given.get("shell")))


def _open(machine: Machine, given: Mapping[str, JsonValue]) -> None:
    machine.launch(["xdg-open", _word(given, "path", "open")], in_shell=False)


def _sleep(_: Machine, given: Mapping[str, JsonValue]) -> None:
    seconds = given.get("seconds", 1)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SLEEP_S:
        raise InputError(f"osworld config: sleep: seconds from 0 to 60, given {seconds!r}")
    time.sleep(seconds)


def _upload(machine: Machine, given: Mapping[str, JsonValue]) -> None:
    content = _word(given, "content", "upload_file").encode()
    machine.write(_word(given, "path", "upload_file"), content)


_STEPS: Final[dict[str, Callable[[Machine, Mapping[str, JsonValue]], None]]] = {
    "command": _execute,
    "execute": _execute,
    "launch": _launch,
    "open": _open,
    "sleep": _sleep,
    "upload_file": _upload,
}


def _command(given: JsonValue) -> str | list[str]:
    checked = _checked(given)
    return checked if isinstance(checked, str) else [str(word) for word in checked]


def _checked(given: JsonValue) -> str | list[JsonValue]:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(isinstance(word, str) for word in given):
        return given
    raise InputError(f"osworld: a command is a text or a list of texts, given {given!r}")


def _word(given: Mapping[str, JsonValue], name: str, what: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"osworld: {what} needs {name!r}, given {value!r}")
    return value


__all__ = ["MachineComputer"]
