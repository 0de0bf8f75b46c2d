"""The bubblewrap command: what a program sees of the machine.

    /usr/lib, the interpreter    read-only, without the installed packages
    /tmp                         its only place to write, in memory, of bounded size; it starts there
    /proc, /dev                  of its own namespaces, read-only but for the devices; not zero, whose shared pages
                                 would be memory that no process is charged for
    nothing else                 no /etc, no /home, no /sys, no shell, no network, no other process

With a shell a program also sees all of /usr, read-only, and may write to its whole root, in memory, of bounded size.

The program is process 1 of its namespaces: no other process of its user has memory that it could open, and the kernel ends
all that it has started when it ends. All namespaces are new, all capabilities are dropped, and the environment is `ENVIRONMENT`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from triforge.errors import SandboxError
from triforge.sandbox.kernel import FILE_BYTES, FILTER, MARK, PROCESSES, PROGRAM, STATUS

ENVIRONMENT: Final[dict[str, str]] = {
    "HOME": "/tmp",  # noqa: S108  inside the sandbox
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # threads would each reserve address space otherwise
    "PATH": "/usr/bin",
    "PYTHONHASHSEED": "0",  # the same program on the same input does the same
    "PYTHONUTF8": "1",
}
FIRST_UID: Final = 1_900_000_000  # above the ids of users, services and systemd's containers
LAST_UID: Final = FIRST_UID + 2**22 * 64 + 64  # 64 for every process id of Linux
OLDEST: Final = 11  # of Python 3
INSTALL: Final = (
    "install it: apt-get install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora)"
)
_SYSTEM: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
_VERSION: Final = re.compile(r"python3\.(\d+)")

# Runs the program as `__main__`. Without the mark the program had not begun, and a failure is not its own.
_BOOT: Final = f"""
import os, sys
if few := int(sys.argv[1]):
    import resource
    resource.setrlimit(resource.RLIMIT_NPROC, (few, few))
    del resource, sys.modules["resource"]
with open({PROGRAM}, "rb") as file: source = file.read()
os.write({MARK}, b"."); os.close({MARK})
sys.argv = ["program.py"]
del os, sys, file, few
exec(compile(globals().pop("source"), "program.py", "exec"))
"""


def command(*, with_shell: bool = False) -> list[str]:
    """Return the command line that runs the source in descriptor `PROGRAM`; its words `FILE_BYTES` and `PROCESSES` stand for limits.

    Args:
        with_shell: the program finds the machine's own programs, and may write outside of /tmp.

    Raises:
        SandboxError: bubblewrap is not installed.
    """
    python = interpreter()
    words = [find(), "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    if with_shell:
        words += ["--size", FILE_BYTES, "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
    words += ["--ro-bind", str(python), str(python)]
    words += _mounts(python, *([Path("/usr/local")] if with_shell else []))
    for name in ("lib", "lib64", *(("bin", "sbin") if with_shell else ())):
        words += _merged(Path("/", name))
    for name in ("ld.so.cache", *(("alternatives",) if with_shell else ())):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    words += ["--ro-bind", "/dev/null", "/dev/zero", "--remount-ro", "/dev"]
    if with_shell:
        words += ["--dir", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    else:
        words += ["--size", FILE_BYTES, "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108
    words += ["--seccomp", str(FILTER), "--json-status-fd", str(STATUS)]
    return [*words, "--", str(python), "-s", "-P", "-c", _BOOT, PROCESSES]


def find() -> str:
    """Return the path of bubblewrap, or raise a SandboxError that names its package."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxError(
            f"programs of a model run only inside bubblewrap, and bwrap is not on PATH; {INSTALL}",
            retryable=False,
        )
    return path


def first_uid() -> int | None:
    """Return the first user id of runs; None when this process is not root, so that runs keep its own.

    Raises:
        SandboxError: it is root of a container that has too few user ids.
    """
    if os.geteuid() != 0:
        return None
    rows = Path("/proc/self/uid_map").read_text().splitlines()
    spans = [(int(first), int(count)) for first, _, count in map(str.split, rows)]
    if any(first <= FIRST_UID and first + count > LAST_UID for first, count in spans):
        return FIRST_UID
    raise SandboxError(
        f"as root the sandbox gives every run a user id of its own above {FIRST_UID}, and this container has only "
        f"{rows}; start the service as another user than root",
        retryable=False,
    )


def interpreter() -> Path:
    """Return the Python that runs programs: the one behind this virtual environment, or the system's where that is private.

    Runs of a root service have other user ids, which cannot reach an interpreter in root's home.

    Raises:
        SandboxError: no such interpreter is readable by every user.
    """
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = [Path(sys.base_prefix, "bin", own), *map(Path, _SYSTEM)]
    tried = [name.resolve() for name in names if name.exists()]
    for path in tried:
        version = _VERSION.fullmatch(path.name)
        if version and int(version[1]) >= OLDEST and (os.geteuid() != 0 or _is_public(path)):
            return path
    raise SandboxError(
        f"programs run under user ids of their own and need a Python 3.{OLDEST} or newer that every user can read; given "
        f"{', '.join(map(str, tried))}; install one: apt-get install python3",
        retryable=False,
    )


def _is_public(path: Path) -> bool:
    """Return whether every user can read an interpreter and its library."""
    library = path.parent.parent / "lib" / path.name
    if not library.is_dir() or path.stat().st_mode & 0o005 != 0o005:
        return False
    return all(
        folder.stat().st_mode & 0o001 for folder in (*path.parents, *library.parents, library)
    )


def _mounts(python: Path, *others: Path) -> Iterator[str]:
    """Yield the mounts of the standard library and of what the interpreter links to, there and below other places.

    Installed packages are hidden: they may hold tests, solutions or private code.
    """
    places = (python.parent.parent, *others)
    folders = [Path("/usr/lib"), Path("/usr/lib64"), *(place / "lib" for place in places)]
    for folder in dict.fromkeys(folder for folder in folders if folder.is_dir()):
        yield from ("--ro-bind", str(folder), str(folder))
        for pattern in ("python3*/site-packages", "python3*/dist-packages"):
            for packages in sorted(path for path in folder.glob(pattern) if path.is_dir()):
                yield from ("--tmpfs", str(packages), "--remount-ro", str(packages))


def _merged(path: Path) -> list[str]:
    """Return the mount of a library folder of the root: the same link as outside, or the folder itself."""
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []
