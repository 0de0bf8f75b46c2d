"""What the runner asks of the kernel: processes looked at and waited for, files in memory, limits, and the way into a run.

Imports nothing but the standard library; see runner.py.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final, NoReturn

STDIN, STDOUT, STDERR, MARK, PROGRAM, FILTER, STATUS = range(7)
FILE_BYTES: Final = "{file_bytes}"  # in a command line: the limit of that name
PROCESSES: Final = "{processes}"  # likewise; 0 where the kernel holds the run to it from outside
SPARE: Final = 32  # descriptors below this number are laid out for bubblewrap
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
EXITING: Final = 0x4  # PF_EXITING, of the flags in /proc/PID/stat
CLONE3: Final = 435  # on every machine
INTO_CGROUP: Final = 0x200000000
SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_TRIES: Final = 10  # each waits for up to 150 ms by itself


def sealed(name: str, data: bytes) -> int:
    """A descriptor of a file in memory that nobody can write to any more."""
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
    """Whether a child has been reaped now, its wait status, and the seconds of processor time of it and its dead."""
    found, status, usage = os.wait4(pid, os.WNOHANG)
    return found == pid, status, usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; `cpu_s` holds its dead children that were waited for."""

    parent: int
    resident: int  # bytes
    cpu_s: float


def processes() -> dict[int, Process]:
    """Every process of the machine by its id."""
    found: dict[int, Process] = {}
    for folder in os.scandir("/proc"):
        name = folder.name
        if name.isdigit():
            with suppress(OSError):  # it has just ended
                found[int(name)] = _process(folder)
    for pid, one in list(found.items()):
        # that one has just ended; its children have another parent now
        if one.parent and one.parent not in found:
            with suppress(OSError):
                found[pid] = _process(Path("/proc", str(pid)))
    return found


def _process(folder: os.PathLike[str]) -> Process:
    fields = _stat(folder)
    resident = int(fields[21])
    # its first thread has ended: only others show its memory
    if fields[0] == b"Z" and int(fields[17]) > 1:
        resident = max(int(_stat(one)[21]) for one in os.scandir(Path(folder, "task")))
    used = sum(int(field) for field in fields[11:15])
    return Process(int(fields[1]), resident * PAGE, used / TICKS)


def _stat(folder: os.PathLike[str]) -> list[bytes]:
    """What /proc says of a process or thread, from its state on."""
    return Path(folder, "stat").read_bytes().rpartition(b")")[2].split()


def files(pid: int, uid: int | None) -> int:
    """How many files are in the /tmp that a process sees; 0 when it has ended. A run's own user needs no right to ask that.

    Raises:
        PermissionError: not even its user is shown it.
    """
    try:
        if uid is not None:
            os.setegid(uid)
            os.seteuid(uid)
        shown = os.statvfs(f"/proc/{pid}/root/tmp")
    except OSError as error:
        if isinstance(error, PermissionError) and not _ended(pid):
            raise
        return 0
    finally:
        if uid is not None:
            os.seteuid(0)
            os.setegid(0)
    return shown.f_files - shown.f_ffree


def _ended(pid: int) -> bool:
    """Whether a process is gone, a zombie or about to be one, of which the kernel may refuse what it would show of the living."""
    try:
        fields = _stat(Path("/proc", str(pid)))
        return fields[0] in b"ZX" or bool(int(fields[6]) & EXITING)
    except OSError:
        return True


def delayed(pid: int) -> float:
    """Seconds in which the threads of a process were ready to run and had no processor; 0 where the kernel does not say."""
    waited_ns = 0
    with suppress(OSError):  # it has just ended, or CONFIG_SCHED_INFO is off
        for thread in os.scandir(f"/proc/{pid}/task"):
            waited_ns += int(Path(thread, "schedstat").read_bytes().split()[1])
    return waited_ns / 1e9


def busy() -> float:
    """Seconds for which the machine's processors have worked since its start, for whomever; a hypervisor's are among them."""
    with Path("/proc/stat").open("rb") as file:
        user, nice, system, _idle, _disk, *rest = file.readline().split()[1:9]
    return sum(map(int, (user, nice, system, *rest))) / TICKS


def fork_into(group: int) -> int:
    """Fork this process of one thread into the control group whose folder is open there; to enter one later takes 10 ms and more.

    Raises:
        OSError: there can be no further process, or it may not be in that group.
    """
    words = struct.pack("11Q", INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    libc = ctypes.PyDLL(None, use_errno=True)
    pid: int = libc.syscall(CLONE3, words, len(words))
    if pid < 0:
        raise OSError(ctypes.get_errno(), "cannot start a process in a control group")
    return pid


def become(
    command: list[str],
    environment: Mapping[str, str],
    given: Mapping[int, int],
    uid: int | None,
    limits: Mapping[str, Any],
) -> NoReturn:
    """In the forked child: take the descriptors, the user id and the limits, then turn into bubblewrap. No return."""
    try:
        # when the machine runs out of memory, this goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
        kept = {what: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE) for what, fd in given.items()}
        for what, fd in kept.items():
            os.dup2(fd, what)
        os.closerange(max(given) + 1, 2**20)  # above all the socket of the service
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        for name in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(name, signal.SIG_DFL)
        for which, soft, hard in bounds(limits, alone=uid is not None):
            resource.setrlimit(which, (soft, hard))
        inside = 0 if uid is not None else limits["processes"]
        numbers = {FILE_BYTES: str(limits["file_bytes"]), PROCESSES: str(inside)}
        words = [numbers.get(word, word) for word in command]
        os.execve(words[0], words, environment)  # noqa: S606  no shell is wanted
    except BaseException as error:  # noqa: BLE001  a forked child must never return into the loop
        os.write(STDERR, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def bounds(limits: Mapping[str, Any], *, alone: bool) -> list[tuple[int, int, int]]:
    """What the kernel holds each process to: (which, soft, hard).

    Processes are counted by user id, over all namespaces and containers of the machine. A run that is `alone` under its id is
    held to its own number here, with one process for bubblewrap. One that shares its id with the service would be refused for
    what others have; it is held to its number by the boot code, inside its namespace, where only its own processes count.
    """
    cpu, memory, files = ceil(limits["cpu_s"]), limits["memory_bytes"], limits["file_bytes"]
    same = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: files,
        resource.RLIMIT_NOFILE: 64,  # the buffers of sockets and pipes are counted by no other limit
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 2**16,
    }
    if alone:
        same[resource.RLIMIT_NPROC] = limits["processes"] + 1
    return [(resource.RLIMIT_CPU, cpu, cpu + 1), *((which, n, n) for which, n in same.items())]
