"""Starts a screen, a window manager and a terminal. Run as a file under `gui/guard.py`, not imported.

    python -I -S launch.py FOLDER UID WIDTH HEIGHT

`session.prepare_folder` has prepared FOLDER. The screen runs under this process's user, window manager and terminal under user UID
(-1: the same). Prints "display N" when the screen answers, and ends with the screen; the guard then ends the others.
"""

from __future__ import annotations

import os
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
from typing import Any

PROCESSES = 256  # of the episode's own user; the shell has its own limit
COOKIE = "authority"  # as session.py names it
MONITOR = "Xvfb"
TERMINAL = (
    "xterm", "-geometry", "76x20+8+8", "-title", "Terminal", "-fn", "fixed", "-bg", "white", "-fg", "black",
    "-xrm", "XTerm*omitTranslation: popup-menu", "-xrm", "XTerm*printerCommand: ", "-xrm", "XTerm*allowWindowOps: false",
    "-xrm", "XTerm*cursorBlink: false", "-xrm", "XTerm*allowFontOps: false",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Start them in turn and wait for the screen to end."""
    folder, uid = pathlib.Path(arguments[0]), int(arguments[1])
    width, height = int(arguments[2]), int(arguments[3])
    user: dict[str, Any] = {} if uid < 0 else {"user": uid, "group": uid, "extra_groups": []}
    if uid >= 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
        for path in (folder / "home", folder / "signal", folder / "own"):
            give(path, uid)
    environment = {**os.environ, "HOME": str(folder / "own"), "TMPDIR": str(folder / "own")}
    reader, writer = os.pipe()
    screen = subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
        [
            MONITOR, "-displayfd", str(writer), "-screen", "0", f"{width}x{height}x24",
            "-fbdir", str(folder / "screen"), "-nolisten", "tcp", "-noreset",
            "-auth", str(folder / COOKIE),
        ],
        pass_fds=(writer,), env=environment,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: screen.terminate())  # it removes its socket
    os.close(writer)
    with os.fdopen(reader) as file:
        number = file.readline().strip()
    if not number:
        return 1
    environment |= {"DISPLAY": f":{number}", "XAUTHORITY": str(folder / "own" / COOKIE)}
    begin = shlex.join((*TERMINAL, "-e", "/bin/sh", str(folder / "shell.sh")))
    manager = ("openbox", "--sm-disable", "--config-file", str(folder / "openbox.xml"))
    # the window manager itself starts the terminal once it is ready to give it the focus
    subprocess.Popen([*manager, "--startup", begin], env=environment, **user)  # noqa: S603 (the same)
    print(f"display {number}", flush=True)  # noqa: T201
    return screen.wait()


def give(path: pathlib.Path, uid: int) -> None:
    """Give a folder and its contents to a user."""
    for place in (path, *path.rglob("*")):
        os.chown(place, uid, uid, follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
