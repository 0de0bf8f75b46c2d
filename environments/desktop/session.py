"""One running desktop: its folder, its screen, its mouse and keyboard.

A model's commands run in the terminal's shell, inside bubblewrap: no network, a read-only system, its own processes, its own
/tmp, and a home folder of its own. Screen, window manager and terminal emulator run outside of it, where the service is root
under a user id of their own. The shell reaches none of them.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from environments.gui import png
from environments.gui.actions import Action, pixels, x_key
from environments.gui.processes import SPAWNING, GuardedProcess
from triforge.errors import EnvError
from triforge.sandbox import filters, jail

FOLDERS: Final = ("home", "signal", "screen", "own")
AGENTS: Final = ("home", "signal")  # the shell can write to these
PROCESSES: Final = 128  # of the shell and all below it
COOKIE: Final = (
    "authority"  # the right to use the screen; window manager and terminal have a copy of their own
)
_LIMITS: Final = (
    "ulimit -v 1048576; ulimit -f 20480; ulimit -t 60"  # KiB, blocks of 512 bytes, seconds
)
_OPENBOX: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- No menus and no keys: nothing can be started from the window manager. -->
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><followMouse>no</followMouse></focus>
  <placement><policy>Smart</policy></placement>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <theme><name>Clearlooks</name><titleLayout>LC</titleLayout><animateIconify>no</animateIconify></theme>
  <keyboard></keyboard>
  <mouse>
    <dragThreshold>3</dragThreshold>
    <context name="Titlebar">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
    </context>
    <context name="Close">
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
  </mouse>
</openbox_config>
"""


def prepare_folder(folder: Path, prepare: Callable[[Path], None]) -> None:
    """Lay out a fresh folder; `prepare` writes into the home folder."""
    folder.chmod(0o711)  # the programs of another user pass through it
    for name in FOLDERS:
        (folder / name).mkdir()
    prepare(folder / "home")
    (folder / "filter").write_bytes(filters.program(for_shell=True))
    (folder / "passwd").write_text("agent:x:1000:1000::/home/agent:/bin/bash\n")
    (folder / "openbox.xml").write_text(_OPENBOX)
    cookie = os.urandom(16)
    for place in (folder / COOKIE, folder / "own" / COOKIE):
        write_cookie(place, cookie)
    with_filter = f"exec 9<{shlex.quote(str(folder / 'filter'))}"
    (folder / "shell.sh").write_text(
        f"{_LIMITS}\n{with_filter}\nexec {shlex.join(_shell(folder))}\n"
    )


def write_cookie(path: Path, cookie: bytes) -> None:
    """Write an X authority file for every display and host, readable by its owner only."""
    name = b"MIT-MAGIC-COOKIE-1"
    parts = (b"", b"", name, cookie)  # address, display, kind, secret
    data = b"\xff\xff" + b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def bounded() -> list[str]:
    """Return the start of bubblewrap's command; in its user namespace only its own processes count (Linux 5.14 and newer)."""
    return ["prlimit", f"--nproc={PROCESSES}:{PROCESSES}"]


def _shell(folder: Path) -> list[str]:
    """Return the command line of the sandboxed shell; descriptor 9 is the filter of system calls."""
    words = [*bounded(), jail.find(), "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "desktop", "--clearenv"]
    variables = {
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PROMPT_COMMAND": "printf . >>/run/prompts/prompts",
        "PS1": "\\w\\$ ",
        "TERM": "xterm",
        "USER": "agent",
    }
    for name, value in variables.items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        words += ["--ro-bind-try", path, path]
    words += ["--ro-bind", str(folder / "passwd"), "/etc/passwd"]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    words += ["--size", str(2**24), "--tmpfs", "/tmp"]  # noqa: S108
    words += ["--bind", str(folder / "signal"), "/run/prompts"]
    words += ["--bind", str(folder / "home"), "/home/agent", "--chdir", "/home/agent"]
    words += ["--remount-ro", "/", "--seccomp", "9"]
    return [*words, "--", "/bin/bash", "--norc", "--noprofile", "-i"]


START_S: Final = 60.0
_CALL_S: Final = 30.0
_LOOK_S: Final = 0.03
_STABLE_S: Final = 2.0
_SCROLL: Final = 60  # pixels of one notch of the wheel
_LAUNCH: Final = Path(__file__).with_name("launch.py")
_NUMBERS: Final = itertools.count()
_STARTING: Final = threading.Semaphore(max(2, os.cpu_count() or 1))
"""Desktops that start at a time: each keeps a processor busy until its prompt is there."""
_BUTTONS: Final = {"left_click": "1", "middle_click": "2", "right_click": "3", "double_click": "1"}


class Desktop:
    """A desktop that has just started. `stop` ends every process of it and removes its folder."""

    def __init__(
        self, width: int, height: int, prepare: Callable[[Path], None], *, settle_s: float
    ) -> None:
        self.width, self.height, self._settle_s = width, height, settle_s
        uid = jail.first_uid()
        own = -1 if uid is None else uid + 64 * os.getpid() + next(_NUMBERS) % 64

        def prepared(folder: Path) -> None:
            self._folder = folder
            prepare_folder(folder, prepare)

        launch = [sys.executable, "-I", "-S", str(_LAUNCH)]
        self._folder = Path()
        self._prompts = 0
        with _STARTING:
            self._kept = GuardedProcess(
                [*launch, "{folder}", str(own), str(width), str(height)], before=prepared
            )
            self._wait_for_prompt()

    def _wait_for_prompt(self) -> None:
        try:
            line = self._kept.read_line("display ", timeout_s=START_S)
            self._display = f":{int(line.split()[-1])}"
            if not self._wait(lambda: self._signal() >= 1, START_S):
                raise EnvError(f"desktop: the terminal shows no prompt within {START_S:g} s")
            self._prompts = self._signal()
        except BaseException:
            self.stop()
            raise

    @property
    def folder(self) -> Path:
        """The folder of all its files; gone after `stop`."""
        return self._folder

    @property
    def home(self) -> Path:
        return self._folder / "home"

    @property
    def alive(self) -> bool:
        return self._kept.alive

    def stop(self) -> None:
        self._kept.stop()

    def screenshot(self) -> bytes:
        """Return the screen as a PNG file, once it has kept still for a moment (or two seconds have passed)."""
        shown = self._pixels()

        def still() -> bool:
            nonlocal shown
            before, shown = shown, self._pixels()
            return bool(np.array_equal(before, shown))

        time.sleep(_LOOK_S)
        self._wait(still, _STABLE_S)
        return png.encode(self.width, self.height, shown.tobytes())

    def windows(self) -> list[str]:
        """Return the titles of all visible windows, sorted."""
        numbers = self._xdotool("search", "--onlyvisible", "--name", ".+", check=False).split()
        named = {self._xdotool("getwindowname", number, check=False).strip() for number in numbers}
        return sorted(named - {"", "Openbox"})

    def act(self, action: Action) -> None:
        """Perform an action, then wait for as many prompts as lines were entered, at most `settle_s` seconds."""
        at = pixels(action.at, self.width, self.height) if action.at is not None else None
        where = ["mousemove", str(at[0]), str(at[1])] if at is not None else []
        lines = 0
        if action.kind == "type":
            lines = action.text.count("\n")
            self._xdotool("type", "--delay", "3", "--", action.text)
        elif action.kind == "key":
            lines = action.keys == ("enter",)
            self._xdotool("key", "--", "+".join(x_key(key) for key in action.keys))
        elif action.kind == "mouse_move":
            self._xdotool(*where)
        elif action.kind == "left_click_drag":
            self._xdotool("mousedown", "1", *where, "mouseup", "1")
        elif action.kind == "scroll":
            notches = max(1, abs(action.amount) // _SCROLL) if action.amount else 0
            button = "4" if action.amount > 0 else "5"
            if notches:
                self._xdotool(*where, "click", "--repeat", str(notches), "--delay", "5", button)
        elif action.kind == "wait":
            time.sleep(action.seconds)
        else:
            twice = ["--repeat", "2", "--delay", "40"] if action.kind == "double_click" else []
            self._xdotool(*where, "click", *twice, _BUTTONS[action.kind])
        if lines:
            self._wait(lambda: self._signal() >= self._prompts + lines, self._settle_s)
        self._prompts = self._signal()

    def _signal(self) -> int:
        """Return how many prompts the shell has shown, by its own account."""
        try:
            return (self._folder / "signal" / "prompts").lstat().st_size
        except OSError:
            return 0

    def _wait(self, ready: Callable[[], bool], at_most_s: float) -> bool:
        deadline = time.monotonic() + at_most_s
        while not ready():
            if time.monotonic() > deadline:
                return False
            if not self.alive:
                raise EnvError("desktop: the screen ended by itself")
            time.sleep(_LOOK_S)
        return True

    def _xdotool(self, *words: str, check: bool = True) -> str:
        environment = {
            "DISPLAY": self._display,
            "PATH": os.environ.get("PATH", os.defpath),
            "XAUTHORITY": str(self._folder / COOKIE),
        }
        try:
            with SPAWNING:
                called = subprocess.Popen(  # noqa: S603 (a fixed program, no shell)
                    ["xdotool", *words], env=environment, stdin=subprocess.DEVNULL,  # noqa: S607
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )  # fmt: skip
            with called:
                try:
                    out, errors = called.communicate(timeout=_CALL_S)
                finally:
                    called.kill()
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise EnvError(f"desktop: xdotool {words[0]}: {error}") from error
        if check and called.returncode != 0:
            raise EnvError(f"desktop: xdotool {words[0]} failed: {errors[-200:]!r}")
        return out.decode(errors="replace")

    def _pixels(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """Read the screen's memory, [height, width, 3], from a window dump that the server keeps in a file."""
        data = (self._folder / "screen" / "Xvfb_screen0").read_bytes()
        head = np.frombuffer(data, dtype=">u4", count=25)
        start, row = int(head[0] + 12 * head[19]), int(head[12])
        rows = np.frombuffer(data, dtype=np.uint8, count=row * self.height, offset=start)
        four = rows.reshape(self.height, row // 4, 4)[:, : self.width]
        return np.ascontiguousarray(four[:, :, 2::-1])
