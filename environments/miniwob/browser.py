"""Chromium behind chromedriver, over WebDriver's HTTP and JSON (Selenium would be imported by every worker for eight calls)."""

from __future__ import annotations

import atexit
import base64
import http.client
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from environments.gui.lending import Lease
from environments.gui.processes import GuardedProcess
from triforge.errors import EnvError

_START_S = 60.0  # a loaded machine starts a browser slowly
_CALL_S = 60.0
_WIDTH, _HEIGHT = 500, 320  # the task's area is the upper left part of it
_FLAGS = (
    "--headless=new", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-gpu", "--disable-sync",
    "--force-color-profile=srgb", "--force-device-scale-factor=1", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--mute-audio", "--no-first-run",
)  # fmt: skip


class ScriptError(EnvError):
    """The page's own code raised; the browser is sound."""


class Browser:
    """A browser with one window. `stop` ends every process of it."""

    def __init__(self) -> None:
        self._kept = GuardedProcess(["chromedriver", "--port=0"])
        self._connection: http.client.HTTPConnection | None = None
        self._session = ""
        self.episodes = 0
        try:
            self._open()
        except BaseException:
            self.stop()
            raise

    @property
    def folder(self) -> str:
        """The folder of its profile; on the command line of each of its processes, gone after `stop`."""
        return str(self._kept.folder)

    def _open(self) -> None:
        line = self._kept.read_line("started successfully on port ", timeout_s=_START_S)
        match = re.search(r"on port (\d+)", line)
        if match is None:
            raise EnvError(f"chromedriver wrote {line!r}, expected its port")
        self._connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=_CALL_S)
        flags = [*_FLAGS, f"--user-data-dir={self._kept.folder / 'profile'}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's own sandbox refuses to run as root
        options: JsonValue = {"binary": shutil.which("chromium"), "args": [*flags]}
        wanted: dict[str, JsonValue] = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "unhandledPromptBehavior": "accept",
            "timeouts": {"script": 20_000, "pageLoad": 50_000, "implicit": 0},
        }
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        if not isinstance(answer, dict):
            raise EnvError(f"chromedriver opened no session: {answer!r}")
        self._session = f"/session/{answer['sessionId']}"
        self._devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": _WIDTH, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        # pages of a headless Chromium 150 have no focus without it
        self._devtools("Emulation.setFocusEmulationEnabled", {"enabled": True})

    def navigate(self, url: str) -> None:
        self._send("DELETE", f"{self._session}/actions")
        self._send("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: JsonValue) -> JsonValue:
        """Run a function body in the page; it calls its last argument with the result."""
        body = {"script": script, "args": [*arguments]}
        return self._send("POST", f"{self._session}/execute/async", body)

    def act(self, sources: Sequence[JsonValue]) -> None:
        self._send("POST", f"{self._session}/actions", {"actions": [*sources]})

    def screenshot(self, width: int, height: int, scale: int) -> bytes:
        """Return the upper left part of the page as a PNG file, enlarged `scale` times."""
        clip: JsonValue = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        answer = self._devtools("Page.captureScreenshot", {"format": "png", "clip": clip})
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), str):
            raise EnvError("Chromium gave no screenshot")
        return base64.b64decode(str(answer["data"]))

    def stop(self) -> None:
        """End the browser, its driver and all their processes. Idempotent."""
        if self._connection is not None:
            self._connection.close()
        self._kept.stop()

    def _devtools(self, command: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        body = {"cmd": command, "params": arguments}
        return self._send("POST", f"{self._session}/goog/cdp/execute", body)

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> JsonValue:
        assert self._connection is not None
        payload = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, payload, {"content-type": "application/json"})
            answer = self._connection.getresponse().read()
            value: JsonValue = json.loads(answer)["value"]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise EnvError(
                f"the browser does not answer {method} {path}: {type(error).__name__}: {error}"
            ) from error
        if isinstance(value, dict) and "error" in value:
            sentence = f"{value['error']}: {str(value.get('message')).splitlines()[0]}"
            raise (ScriptError if value["error"] == "javascript error" else EnvError)(sentence)
        return value


TIRED_AFTER: Final = 200  # episodes; a fresh browser is cheaper than one that has grown


class Browsers:
    """The browsers that the episodes of a process share."""

    def __init__(self, start: Callable[[], Browser] = Browser) -> None:
        self._start = start
        self._idle: dict[str, Browser] = {}

    def lease(self, limit: int) -> Lease[Browser]:
        """Return a lease of one of `limit` browsers; one that is not sound, or tired, is ended after it."""
        places = [f"browser {number} of {id(self)}" for number in range(limit)]
        return Lease("miniwob: browser", places, self._open, self._give_back)

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].stop()

    def _open(self, place: str) -> Browser:
        browser = self._idle.pop(place, None) or self._start()
        browser.episodes += 1
        return browser

    def _give_back(self, place: str, browser: Browser, sound: bool) -> None:
        if sound and browser.episodes < TIRED_AFTER:
            self._idle[place] = browser
        else:
            browser.stop()


SHARED: Final = Browsers()
atexit.register(SHARED.close)
