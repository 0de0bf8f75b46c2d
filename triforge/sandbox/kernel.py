"""Reads of /proc, files in memory, and the step from a forked child to bubblewrap. Standard library only, as in runner.py."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final, NoReturn

STDIN, STDOUT, STDERR, MARK, PROGRAM, FILTER, STATUS = range(7)
FILE_BYTES: Final = "{file_bytes}"  # in a command line: the limit of that name
PROCESSES: Final = (
    "{processes}"  # likewise; 0 where the kernel counts the run's processes from outside
)
SPARE: Final = 32  # descriptors below this number are laid out for bubblewrap
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
EXITING: Final = 0x4  # PF_EXITING, of the flags in /proc/PID/stat
SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_TRIES: Final = 10  # each waits for up to 150 ms by itself


def sealed(name: str, data: bytes) -> int:
    """Return a descriptor of a file in memory that cannot be written to any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            break
        except OSError as error:  # the kernel itself may hold a page for a moment
            if error.errno != errno.EBUSY or not left:
                os.close(fd)
                raise
    return fd


def waited(pid: int) -> tuple[bool, int, float]:
    """Return whether a child is reaped now, its wait status, and processor seconds of it and of its dead children."""
    reaped, status, usage = os.wait4(pid, os.WNOHANG)
    return reaped == pid, status, usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; `cpu_s` includes its dead children that were waited for."""

    parent: int
    resident: int  # bytes
    cpu_s: float


def processes() -> dict[int, Process]:
    """Return every process of the machine by its id."""
    seen: dict[int, Process] = {}
    for folder in os.scandir("/proc"):
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                seen[int(folder.name)] = _process(folder)
    for pid, one in list(seen.items()):
        if one.parent and one.parent not in seen:  # that one has just ended: read the new parent
            with suppress(OSError):
                seen[pid] = _process(Path("/proc", str(pid)))
    return seen


def _process(folder: os.PathLike[str]) -> Process:
    fields = _stat(folder)
    resident = int(fields[21])
    # its first thread has ended: only the others show its memory
    if fields[0] == b"Z" and int(fields[17]) > 1:
        resident = max(int(_stat(one)[21]) for one in os.scandir(Path(folder, "task")))
    used = sum(int(field) for field in fields[11:15])
    return Process(int(fields[1]), resident * PAGE, used / TICKS)


def _stat(folder: os.PathLike[str]) -> list[bytes]:
    """Return the fields of `stat` of a process or thread, from its state on."""
    return Path(folder, "stat").read_bytes().rpartition(b")")[2].split()


def files(pid: int, uid: int | None) -> int:
    """Count the files in the /tmp of a process, as its user, which needs no right to look; 0 when it has ended.

    Raises:
        PermissionError: not even its user may look.
    """
    try:
        if uid is not None:
            os.setegid(uid)
            os.seteuid(uid)
        disk = os.statvfs(f"/proc/{pid}/root/tmp")
    except OSError as error:
        if isinstance(error, PermissionError) and not _ended(pid):
            raise
        return 0
    finally:
        if uid is not None:
            os.seteuid(0)
            os.setegid(0)
    return disk.f_files - disk.f_ffree


def _ended(pid: int) -> bool:
    """Return whether a process is gone, a zombie or exiting: the kernel may then refuse to show its files."""
    try:
        fields = _stat(Path("/proc", str(pid)))
        return fields[0] in b"ZX" or bool(int(fields[6]) & EXITING)
    except OSError:
        return True


def delayed(pid: int) -> float:
    """Return for how many seconds the threads of a process were ready to run and had no processor; 0 if unknown."""
    waited_ns = 0
    with suppress(OSError):  # it has just ended, or CONFIG_SCHED_INFO is off
        for thread in os.scandir(f"/proc/{pid}/task"):
            waited_ns += int(Path(thread, "schedstat").read_bytes().split()[1])
    return waited_ns / 1e9


def busy() -> float:
    """Return for how many seconds the machine's processors have worked since its start, for a hypervisor too."""
    with Path("/proc/stat").open("rb") as file:
        user, nice, system, _idle, _disk, *rest = file.readline().split()[1:9]
    return sum(map(int, (user, nice, system, *rest))) / TICKS


def become(
    command: list[str],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
    uid: int | None,
    limits: Mapping[str, Any],
) -> NoReturn:
    """In a forked child: take the descriptors, the user id and the limits, then execute bubblewrap. Never returns.

    The kernel counts processes by user id, over all namespaces and containers of the machine. A run with a user id of its
    own is held to its number here, with one process for bubblewrap; a run that shares the service's id is held to its
    number by the boot code, inside its user namespace, where only its own processes count.
    """
    try:
        # when the machine runs out of memory, this goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
        kept = {to: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE) for to, fd in descriptors.items()}
        for to, fd in kept.items():
            os.dup2(fd, to)
        os.closerange(max(descriptors) + 1, 2**20)  # above all the socket of the service
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"] + 1,) * 2)
        for name in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(name, signal.SIG_DFL)
        cpu = ceil(limits["cpu_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        for which, most in (
            (resource.RLIMIT_AS, limits["memory_bytes"]),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, 64),  # no other limit counts the buffers of sockets and pipes
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 2**16),
        ):
            resource.setrlimit(which, (most, most))
        inside = 0 if uid is not None else limits["processes"]
        numbers = {FILE_BYTES: str(limits["file_bytes"]), PROCESSES: str(inside)}
        words = [numbers.get(word, word) for word in command]
        os.execve(words[0], words, environment)  # noqa: S606  no shell is wanted
    except BaseException as error:  # noqa: BLE001  a forked child must never return into the loop
        os.write(STDERR, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)
