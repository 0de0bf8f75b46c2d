"""The system calls that a sandboxed program may not make, as a filter for seccomp.

Namespaces hide most of the machine. What they do not hide is closed here: virtual sockets reach the hypervisor from any
network namespace, key loops outlive the program, files in memory and System V's segments and queues are counted by no
limit, further namespaces open the kernel to whoever is root in them, and a tracer could take a sibling over. A program
that gives way to all others could make a busy machine its excuse. A forbidden call fails with EPERM, as it would for
want of a right. Numbers are those of Linux's own tables.

Some calls are refused for what they ask only. Where nobody waits for children that have died (SIGCHLD ignored), the
kernel adds their processor time to nobody's. Processes are charged for the memory that they have mapped: what is shared
and of no file stays when nobody has it mapped any more, pages can be given to a pipe or sent to the disk, and pages of
the machine's store of huge ones are in no process's count.
"""

from __future__ import annotations

import errno
import platform
import signal
import socket
import struct
from typing import Final, NamedTuple

from triforge.errors import SandboxError

_X86_64: Final[dict[str, int]] = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305,
    "clock_settime": 227, "delete_module": 176, "finit_module": 313, "get_mempolicy": 239, "init_module": 175,
    "io_setup": 206, "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "mbind": 237, "memfd_create": 319, "migrate_pages": 256, "modify_ldt": 154,
    "mount": 165, "move_pages": 279, "msgget": 68, "name_to_handle_at": 303, "open_by_handle_at": 304, "perf_event_open": 298,
    "personality": 135, "pivot_root": 155, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101,
    "quotactl": 179, "reboot": 169, "request_key": 249, "semget": 64, "set_mempolicy": 238, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "shmget": 29, "swapoff": 168, "swapon": 167,
    "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153, "vmsplice": 278,
    "ioprio_set": 251, "sched_setattr": 314, "sched_setparam": 142, "sched_setscheduler": 144, "setpriority": 141,
}  # fmt: skip
_AARCH64: Final[dict[str, int]] = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "delete_module": 106, "finit_module": 273, "get_mempolicy": 236, "init_module": 105,
    "io_setup": 0, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18, "mbind": 235,
    "memfd_create": 279, "migrate_pages": 238, "mount": 40, "move_pages": 239, "msgget": 186, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "perf_event_open": 241, "personality": 92, "pivot_root": 41,
    "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "reboot": 142,
    "request_key": 218, "semget": 190, "set_mempolicy": 237, "setdomainname": 162, "sethostname": 161, "setns": 268,
    "settimeofday": 170, "shmget": 194, "swapoff": 225, "swapon": 224, "syslog": 116, "umount2": 39,
    "unshare": 97, "userfaultfd": 282, "vhangup": 58, "vmsplice": 75,
    "ioprio_set": 30, "sched_setattr": 274, "sched_setparam": 118, "sched_setscheduler": 119, "setpriority": 140,
}  # fmt: skip
_ALIKE: Final[dict[str, int]] = {  # newer calls have one number on all machines
    "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "memfd_secret": 447, "mount_setattr": 442, "move_mount": 429, "open_tree": 428,
    "pidfd_getfd": 438, "process_madvise": 440, "process_mrelease": 448, "quotactl_fd": 443,
}  # fmt: skip
_CLONE3: Final = 435


class _Machine(NamedTuple):
    """A machine's word in the kernel's audit, its table, and the numbers of calls that are judged by their arguments."""

    word: int
    table: dict[str, int]
    clone: int
    socket: int
    mmap: int
    madvise: int
    rt_sigaction: int


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, _X86_64, 56, 41, 9, 28, 13),
    "aarch64": _Machine(0xC00000B7, _AARCH64, 220, 198, 222, 233, 134),
}
_NEW_NAMESPACES: Final = 0x7E020000  # every CLONE_NEW* flag that clone takes
_SHARED_WITH_NO_FILE: Final = 0x01 | 0x20  # MAP_SHARED (in MAP_SHARED_VALIDATE, too), MAP_ANONYMOUS
_HUGE_PAGES: Final = 0x40000  # MAP_HUGETLB: of the machine's own store
_PAGE_OUT: Final = 21  # MADV_PAGEOUT

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _MACHINE_WORD = 0, 4  # offsets in seccomp_data
_ARGUMENT: Final = tuple(range(16, 64, 8))  # the low half of each; the high one 4 bytes after it
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_OTHER_TABLES: Final = 0x40000000  # x86-64's 32-bit numbers begin here


def program(machine: str = "", *, for_shell: bool = False) -> bytes:
    """The filter in the kernel's form, as bubblewrap takes it.

    Args:
        machine: as `uname -m` says it; this one's by default.
        for_shell: a shell has a handler of SIGCHLD and needs it; the processor time of children can then be hidden.

    Raises:
        SandboxError: the machine's table of system calls is not known here.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        known = ", ".join(_MACHINES)
        raise SandboxError(
            f"the sandbox has no system call filter for a machine of type {machine!r}, only for {known}",
            retryable=False,
        )
    here = _MACHINES[machine]
    code = [_line(_LOAD, _MACHINE_WORD), _line(_IF_EQUAL, here.word, 1, 0), _line(_RETURN, _KILL)]
    code += [_line(_LOAD, _NUMBER), _line(_IF_AT_LEAST, _OTHER_TABLES, 0, 1), _line(_RETURN, _KILL)]
    for number in sorted({*here.table.values(), *_ALIKE.values()}):
        code += [_line(_IF_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    code += [_line(_IF_EQUAL, _CLONE3, 0, 1), _refuse(errno.ENOSYS)]  # libraries then use clone
    first, second, third, fourth, *_ = _ARGUMENT
    code += _where(here.clone, _line(_LOAD, first), _line(_IF_ANY_BIT, _NEW_NAMESPACES, 0, 1))
    code += _where(here.socket, _line(_LOAD, first), _line(_IF_EQUAL, socket.AF_UNIX, 1, 0))
    flags = [_line(_LOAD, fourth), _line(_IF_ANY_BIT, _HUGE_PAGES, 2, 0)]
    flags += [_line(_AND, _SHARED_WITH_NO_FILE), _line(_IF_EQUAL, _SHARED_WITH_NO_FILE, 0, 1)]
    code += _where(here.mmap, *flags)
    code += _where(here.madvise, _line(_LOAD, third), _line(_IF_EQUAL, _PAGE_OUT, 0, 1))
    if not for_shell:  # to ask what is done at SIGCHLD is allowed: without a new action, whose address has two halves
        asked = [_line(_LOAD, first), _line(_IF_EQUAL, signal.SIGCHLD, 0, 5)]
        asked += [_line(_LOAD, second), _line(_IF_EQUAL, 0, 0, 2), _line(_LOAD, second + 4)]
        code += _where(here.rt_sigaction, *asked, _line(_IF_EQUAL, 0, 1, 0))
    return b"".join([*code, _line(_RETURN, _ALLOW)])


def _where(number: int, *judged: bytes) -> list[bytes]:
    """The lines for one call: the last of `judged` goes on to the refusal or skips it, and nothing comes after."""
    lines = [*judged, _refuse(errno.EPERM), _line(_RETURN, _ALLOW)]
    return [_line(_IF_EQUAL, number, 0, len(lines)), *lines]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _line(_RETURN, _REFUSE | number)
