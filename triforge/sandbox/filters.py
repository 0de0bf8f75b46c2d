"""A seccomp filter of the system calls that a sandboxed program may not make, built by libseccomp.

Namespaces hide most of the machine. The filter closes what they do not hide: virtual sockets reach the hypervisor from any
network namespace, io_uring outlives the program, memory files and System V segments are counted by no limit, new namespaces
open the kernel to their root, a tracer could take over a sibling, and a program that lowers its own priority could blame a
busy machine for its time. A refused call fails with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
from functools import cache
from typing import Any, Final

from triforge.errors import SandboxError

LIBRARY: Final = "libseccomp.so.2"
INSTALL: Final = (
    "install it: apt-get install libseccomp2 (Debian, Ubuntu) or dnf install libseccomp (Fedora)"
)
_REFUSED: Final = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module finit_module fsconfig fsmount fsopen fspick
get_mempolicy init_module io_setup io_uring_enter io_uring_register io_uring_setup ioperm iopl ioprio_set kcmp kexec_file_load
kexec_load keyctl lookup_dcookie mbind memfd_create memfd_secret migrate_pages modify_ldt mount mount_setattr move_mount
move_pages msgget name_to_handle_at open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root
process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key
sched_setattr sched_setparam sched_setscheduler semget set_mempolicy setdomainname sethostname setns setpriority settimeofday
shmget swapoff swapon syslog umount2 unshare userfaultfd vhangup vmsplice
"""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OTHER_TABLE: Final = 2  # attribute: the action for calls of another table, such as x32
_UNKNOWN: Final = -1  # what libseccomp returns for a name that it does not know


class _Test(ctypes.Structure):
    """libseccomp's `scmp_arg_cmp`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


_NOT_EQUAL, _MASKED = 1, 7  # operators; `_MASKED` compares what `first` lets through with `second`
_INT: Final = 2**32 - 1  # the kernel reads an int from the low half of a register
_NAMESPACES: Final = (0x20000, *(0x2000000 << n for n in range(6)))  # CLONE_NEW*
_TESTED: Final = (
    *(("clone", _Test(0, _MASKED, flag, flag)) for flag in _NAMESPACES),
    ("socket", _Test(0, _NOT_EQUAL, socket.AF_UNIX)),
    # memory that is charged to no process: shared and anonymous, of huge pages, paged out
    ("mmap", _Test(3, _MASKED, 0x21, 0x21)),  # MAP_SHARED, MAP_ANONYMOUS
    ("mmap", _Test(3, _MASKED, 0x40000, 0x40000)),  # MAP_HUGETLB
    ("madvise", _Test(2, _MASKED, _INT, 21)),  # MADV_PAGEOUT
)
# where SIGCHLD is ignored, the kernel counts the time of dead children nowhere; reading the action stays allowed
_CHILDREN: Final = (_Test(0, _MASKED, _INT, signal.SIGCHLD), _Test(1, _NOT_EQUAL, 0))


@cache
def program(*, for_shell: bool = False, library: str = LIBRARY) -> bytes:
    """Return the filter in the kernel's form, as `bwrap --seccomp` reads it.

    Args:
        for_shell: allow handlers of SIGCHLD, which a shell needs; a program can then hide the processor time of its children.

    Raises:
        SandboxError: libseccomp is missing, or too old to know one of the calls.
    """
    try:
        lib: Any = ctypes.CDLL(library)
    except OSError:
        raise SandboxError(
            f"the sandbox filters system calls with {library}, which is not installed; {INSTALL}",
            retryable=False,
        ) from None
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(_ALLOW))
    failed = lib.seccomp_attr_set(context, _OTHER_TABLE, _KILL)

    def refuse(name: str, *tests: _Test, error: int = errno.EPERM) -> bool:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number < _UNKNOWN:  # this machine has no such call
            return False
        array, action = (_Test * len(tests))(*tests), _ERRNO | error
        added = lib.seccomp_rule_add_array(context, action, number, len(tests), array) == 0
        return number == _UNKNOWN or not added

    for name in _REFUSED.split():
        failed |= refuse(name)
    for name, test in _TESTED:
        failed |= refuse(name, test)
    failed |= refuse("clone3", error=errno.ENOSYS)  # libraries then use clone
    failed |= not for_shell and refuse("rt_sigaction", *_CHILDREN)
    with open(os.memfd_create("filter"), "rb") as file:  # noqa: PTH123
        failed |= lib.seccomp_export_bpf(context, file.fileno())
        lib.seccomp_release(context)
        if failed:
            raise SandboxError(
                f"{library} cannot build the filter of system calls, expected version 2.5.2 or newer; {INSTALL}",
                retryable=False,
            )
        file.seek(0)
        return file.read()
