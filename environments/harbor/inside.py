"""A program inside the sandbox or a container: lays files out, runs a script, reports its output and the changed files.

It is sent as source and imports the standard library only (3.9). Process 1 holds nothing: the task lies in its child. No other
process may read or write the memory of either, so code of a script can neither read the request nor answer in its place. It can
only end this process, and then there is no answer.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

Entry = tuple[str, int, str, str]
"""Path, mode, kind, content: "d" folder, "f" file in base64, "l" link with its target, "x" removed from the image."""
NOT_DUMPABLE = 4  # PR_SET_DUMPABLE


def lay_out(tree: list[Entry], *, strictly: bool) -> None:
    """Write a tree over the present files, its links last, so that nothing is written through one."""
    for path, mode, kind, content in sorted(tree, key=lambda entry: (entry[2] == "l", entry[0])):
        with suppress(*(() if strictly else (OSError,))):
            place = Path(path)
            if kind != "d" or not place.is_dir() or place.is_symlink():
                remove(place)
            if kind == "x":
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "d":
                place.mkdir(exist_ok=True)
            elif kind == "l":
                place.symlink_to(content)
            else:
                place.write_bytes(base64.b64decode(content))
            if kind == "f":
                place.chmod(mode)
    for path, mode, kind, _ in reversed(tree):
        if kind == "d":
            with suppress(OSError):
                os.chmod(path, mode)  # noqa: PTH101  a folder may be closed only when it is full


def remove(place: Path) -> None:
    """Remove a file, a link or a folder."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()


def seen(place: str, leave: set[str]) -> dict[str, os.stat_result]:
    """Return the status of all below a folder, without `leave`; no link is followed."""
    known: dict[str, os.stat_result] = {}
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(place, 0o700)  # noqa: PTH101
    for one in sorted(os.listdir(place)):  # noqa: PTH208
        path = os.path.join(place, one)  # noqa: PTH118  "/" and a name make no "//"
        if path in leave:
            continue
        with suppress(OSError, UnicodeError):
            path.encode()
            known[path] = os.lstat(path)
            if stat.S_ISDIR(known[path].st_mode):
                known |= seen(path, leave)
    return known


def changed(before: dict[str, os.stat_result], leave: set[str]) -> list[Entry]:
    """Return the changes since `before` as a tree; the time of a change cannot be set."""
    now = seen("/", leave)
    tree: list[Entry] = [(path, 0, "x", "") for path in before if path not in now]
    for path, one in now.items():
        if path in before and before[path].st_ctime_ns == one.st_ctime_ns:
            continue
        mode = stat.S_IMODE(one.st_mode)
        with suppress(OSError):
            if stat.S_ISLNK(one.st_mode):
                tree.append((path, mode, "l", os.readlink(path)))  # noqa: PTH115
            elif stat.S_ISDIR(one.st_mode):
                tree.append((path, mode, "d", ""))
            elif stat.S_ISREG(one.st_mode):
                tree.append((path, mode, "f", base64.b64encode(_bytes(path)).decode()))
    return tree


def _bytes(path: str, most: int = -1) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(most)


def marks(tree: list[Entry]) -> list[tuple[int, int]]:
    """Return marks that change when a file is written or replaced, or a folder closed; the time of a change cannot be set."""
    there = [(os.lstat(path), kind) for path, _, kind, _ in tree]
    return [(one.st_ino, one.st_mode if kind == "d" else one.st_ctime_ns) for one, kind in there]


def sound(given: dict[str, Any], before: list[tuple[int, int]]) -> bool:
    """Return whether added files are as they were laid out, and files to read could be written until the end."""
    try:
        written = [os.lstat(path) for path in given["read"] if os.path.lexists(path)]
        kept = marks(given["added"]) == before
    except OSError:
        return False
    return kept and all(
        stat.S_ISREG(one.st_mode) and one.st_mode & 0o600 == 0o600 for one in written
    )


def alone() -> bool:
    """Return whether all processes of the script have ended, or end in a moment."""
    for _ in range(20):
        try:
            os.kill(-1, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.005)
    return False


def run(given: dict[str, Any]) -> tuple[int | None, str, bool]:
    """Run the script; return its status, None when its time was up, its output, shortened in the middle, and whether it left no process."""
    child = subprocess.Popen(  # noqa: S603
        given["script"], cwd=given["cwd"], env=given["env"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    output = bytearray()
    reader = threading.Thread(target=_read, args=(child.stdout, output, given["shown"]))
    reader.start()
    status = None
    with suppress(subprocess.TimeoutExpired):
        status = child.wait(given["seconds"])
    ended_all = alone() if given["read"] else True
    with suppress(ProcessLookupError):  # all but this process and process 1
        os.kill(-1, signal.SIGKILL)
    child.wait()
    reader.join()
    return status, output.decode("utf-8", "replace"), ended_all


def _read(pipe: BinaryIO, output: bytearray, shown: int) -> None:
    left_out = 0
    while part := os.read(pipe.fileno(), 65536):
        output += part
        if len(output) > 2 * shown:
            left_out += len(output) - shown
            del output[shown // 2 : len(output) - shown // 2]
    if left_out:
        output[shown // 2 : shown // 2] = f"\n... {left_out} bytes left out ...\n".encode()


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request and return the report."""
    leave = set(given["leave"])
    image = seen("/", leave) if given["keep"] else {}
    lay_out(given["tree"], strictly=False)
    lay_out(given["added"], strictly=True)
    os.makedirs(given["cwd"], exist_ok=True)  # noqa: PTH103
    before = marks(given["added"])
    status, output, ended_all = run(given)
    read = {}
    for path in given["read"]:
        with suppress(OSError):
            read[path] = _bytes(path, 65536).decode("utf-8", "replace")
    tree = changed(image, leave) if given["keep"] else []
    clean = ended_all and (not given["read"] or sound(given, before))
    return {"status": status, "output": output, "read": read, "tree": tree, "clean": clean}


def main() -> None:
    """Fork into a process that only waits, and one that works."""
    ours_in, ours_out = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    closed, close = os.pipe()
    worker = os.fork()
    if worker:
        os.close(ours_in)
        os.close(ours_out)
        os.write(close, b".")
        while (ended := os.wait())[0] != worker:
            pass
        os._exit(os.waitstatus_to_exitcode(ended[1]) & 0xFF)
    os.read(closed, 1)
    with os.fdopen(ours_in, "rb") as file:
        given = json.load(file)
    report = json.dumps(answer(given))
    with os.fdopen(ours_out, "w") as out:
        out.write(report)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
