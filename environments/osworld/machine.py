"""One machine behind OSWorld's control server: HTTP routes for the screen, for commands and for files.

    GET  /screenshot                                    a PNG file
    POST /execute {"command": [...], "shell": false}    {"status", "output", "error", "returncode"}
    POST /setup/launch {"command": [...], "shell"}      starts a program and does not wait for it
    POST /file, form field `file_path`                  a file's bytes, 404 where there is none
    POST /setup/upload, form `file_path`, `file_data`   writes a file

Mouse and keyboard are moved by short Python programs with pyautogui, sent to /execute.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import httpx
from pydantic import JsonValue

from environments.gui import png
from environments.gui.actions import Action, pixels
from environments.gui.keys import pyautogui_key
from triforge.errors import EnvError

_LARGEST: Final = 64 * 2**20
_RETRY_S: Final = 0.2
_BUTTONS: Final = {"left_click": "left", "right_click": "right", "middle_click": "middle"}
_BEGIN: Final = "import pyautogui; pyautogui.FAILSAFE = False; "


class _TooLargeError(EnvError):
    """An answer has no end, or none that we wait for."""


class Machine:
    """A control server by address.

    Args:
        url: where it listens.
        call_s: seconds that one call may take.
        largest: bytes of one answer; the agent decides what lies in a machine's files and what its commands write.
    """

    def __init__(self, url: str, *, call_s: float, largest: int = _LARGEST) -> None:
        self.url = url.rstrip("/")
        self._largest = largest
        self._client = httpx.Client(base_url=self.url, timeout=call_s)
        self._size = (0, 0)

    def wait(self, seconds: float) -> None:
        """Until it answers with a screenshot."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.screenshot()
            except EnvError as error:
                if time.monotonic() >= deadline:
                    raise EnvError(
                        f"osworld: {self.url} is not ready within {seconds:g} s: {error.detail}"
                    ) from error
                time.sleep(_RETRY_S)
            else:
                return

    def screenshot(self) -> bytes:
        """The screen as a PNG file."""
        image = self._call("GET", "/screenshot").content
        try:
            self._size = png.size(image)
        except ValueError as error:
            raise EnvError(f"osworld: {self.url}/screenshot: {error}") from error
        return image

    def run(self, command: str | Sequence[str], *, in_shell: bool) -> tuple[str, str]:
        """Run a command inside the machine; what it wrote to standard output and to standard error."""
        answer = self._executed(command, in_shell=in_shell)
        return str(answer.get("output") or ""), str(answer.get("error") or "")

    def launch(self, command: JsonValue, *, in_shell: bool) -> None:
        """Start a program and do not wait for it."""
        self._call("POST", "/setup/launch", json={"command": command, "shell": in_shell})

    def read(self, path: str) -> bytes | None:
        """A file of at most `largest` bytes; None where there is none."""
        try:
            answer = self._call("POST", "/file", absent_ok=True, data={"file_path": path})
        except _TooLargeError:
            return None
        return None if answer.status_code == 404 else answer.content

    def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        files = {"file_data": (path.rpartition("/")[2] or "file", content)}
        self._call("POST", "/setup/upload", data={"file_path": path}, files=files)

    def act(self, action: Action) -> None:
        """Perform an action by pixel or key."""
        if action.kind == "wait":
            time.sleep(action.seconds)
            return
        if self._size == (0, 0):
            self.screenshot()
        code = _BEGIN + program(action, *self._size)
        answer = self._executed(["python", "-c", code], in_shell=False)
        if answer.get("returncode") not in (None, 0):  # an agent that cannot move has not failed
            said = str(answer.get("error"))[-200:]
            raise EnvError(
                f"osworld: {self.url}: pyautogui failed, is it installed in the machine? {said}"
            )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def _executed(self, command: str | Sequence[str], *, in_shell: bool) -> dict[str, JsonValue]:
        given = command if isinstance(command, str) else [*command]
        answer = self._json("/execute", {"command": given, "shell": in_shell})
        if answer.get("status") == "error":
            raise EnvError(f"osworld: {self.url}/execute: {str(answer.get('message'))[:200]}")
        return answer

    def _json(self, path: str, body: dict[str, Any]) -> dict[str, JsonValue]:
        answer = self._call("POST", path, json=body)
        try:
            value = answer.json()
        except ValueError as error:
            raise EnvError(f"osworld: {self.url}{path} answers no JSON") from error
        if not isinstance(value, dict):
            raise EnvError(f"osworld: {self.url}{path} answers {str(value)[:80]!r}")
        return value

    def _call(
        self, method: str, path: str, *, absent_ok: bool = False, **content: Any
    ) -> httpx.Response:
        held = bytearray()
        try:
            with self._client.stream(method, path, **content) as told:
                for piece in told.iter_bytes():
                    held += piece
                    if len(held) > self._largest:
                        raise _TooLargeError(
                            f"osworld: {self.url}{path} answers more than {self._largest} bytes"
                        )
            answer = httpx.Response(told.status_code, content=bytes(held))
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise EnvError(
                f"osworld: {self.url}{path} does not answer: {type(error).__name__}: {error}"
            ) from error
        if answer.is_success or (absent_ok and answer.status_code == 404):
            return answer
        raise EnvError(
            f"osworld: {self.url}{path} answers {answer.status_code}: {answer.text[:200]!r}"
        )


def program(action: Action, width: int, height: int) -> str:
    """The statement of pyautogui that performs an action on a screen of this size; every value is a plain literal."""
    x, y = pixels(action.at, width, height) if action.at is not None else (-1, -1)
    where = f"{x}, {y}" if action.at is not None else ""
    if action.kind == "type":
        return f"pyautogui.write({action.text!a}, interval=0.02)"
    if action.kind == "key":
        return f"pyautogui.hotkey({', '.join(ascii(pyautogui_key(k)) for k in action.keys)})"
    if action.kind == "mouse_move":
        return f"pyautogui.moveTo({where})"
    if action.kind == "left_click_drag":
        return f"pyautogui.dragTo({where}, duration=0.5, button='left')"
    if action.kind == "double_click":
        return f"pyautogui.doubleClick({where})"
    if action.kind == "scroll":
        at = f", x={x}, y={y}" if where else ""
        return f"pyautogui.scroll({action.amount}{at})"
    return f"pyautogui.click({where}, button='{_BUTTONS[action.kind]}')"


__all__ = ["Machine", "program"]
