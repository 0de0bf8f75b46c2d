"""A guard process: starts a program and ends it with all of its descendants. Run as a file, not imported.

    python -I -S guard.py FOLDER PROGRAM [ARGUMENT ...]

It becomes the parent of every orphan below it (a subreaper), so that a browser's helpers cannot escape by starting sessions of
their own. When its standard input closes (the parent closed it or died), or when the program ends, it ends the program, kills and
reaps all descendants, removes FOLDER and ends. A PID namespace would do the same, but containers often allow none.
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
GRACE_S = 3.0  # for a program to remove its own files
NICE = 5  # the worker's event loop goes before browsers and screens


def main(arguments: list[str]) -> int:
    """Start the program and wait for the end; return its exit status, 127 if it cannot be started."""
    folder, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the pipe ends this process, after its children
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
    """Remove a folder, also parts that a model has closed."""
    for place, below, _ in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in below):
            if not path.is_symlink():  # no process is left that could put one there meanwhile
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def default_signals() -> None:
    """Reset signals in the program, which would inherit that they are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def watch(child: subprocess.Popen[bytes]) -> int:
    """Wait until standard input closes or the program ends; reap orphans on the way."""
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
    """Reap ended children; return the status of the program itself if it is among them."""
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
    """Kill until no descendant is left. Orphans become our children and are found the next time round."""
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
    """Return all processes below this one, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(entry.joinpath("stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    tree = [os.getpid()]
    for pid in tree:
        tree += children.get(pid, [])
    return tree[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
