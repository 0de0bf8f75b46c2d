"""A process of its own that starts a program and ends everything that came of it. Run as a file, not imported.

    python -I -S guard.py FOLDER PROGRAM [ARGUMENT ...]

It becomes the parent of every orphan below it (a subreaper), so that a browser's helpers cannot escape by starting
sessions of their own. When its standard input closes, because we closed it or because we died in any way, it asks the program
to end, kills all of its descendants, waits for each, removes FOLDER and ends. The same when the program ends by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.5  # how soon a program that ended by itself is noticed
GRACE_S = 3.0  # for a program to take its own files away
NICE = 5  # browsers and screens give way to the worker whose event loop all of its episodes share


def main(arguments: list[str]) -> int:
    """Start the program and wait for the end; the exit status is the program's, 127 if it cannot be started."""
    folder, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # we end when the pipe says so, never before our children
    status = 127
    try:
        child = subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=default_signals
        )
        status = watch(child)
    except OSError as error:
        print(f"guard: {error}", file=sys.stderr)  # noqa: T201
    finally:
        end_descendants()
        remove(folder)
    return status


def remove(folder: str) -> None:
    """Remove a folder, also what was closed to us by a model that made it."""
    for place, below, _ in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in below):
            if not path.is_symlink():  # nobody is left who could put one there meanwhile
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def default_signals() -> None:
    """Ignored signals are inherited; the program is to have its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def watch(child: subprocess.Popen[bytes]) -> int:
    """Wait until standard input closes or the program ends; reaps orphans on the way."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            if selector.select(TICK_S) and not os.read(0, 4096):
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(GRACE_S)
                return 0
            status = reap(child.pid)
            if status is not None:
                return status


def reap(main_pid: int) -> int | None:
    """Collect who has ended; the status of the program itself if it is among them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == main_pid:
            ended = os.waitstatus_to_exitcode(status) & 0xFF


def end_descendants() -> None:
    """Kill until nobody is left. Who is orphaned meanwhile becomes our child and is found the next time round."""
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def descendants() -> list[int]:
    """Everybody below us, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(entry.joinpath("stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
