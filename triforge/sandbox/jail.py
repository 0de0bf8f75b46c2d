"""How bubblewrap is called: the little that a program sees of the machine.

    /usr/lib, the interpreter    read-only, without the packages that are installed beside it
    /tmp                         its only place to write, in memory, of bounded size; it starts there
    /proc, /dev                  of its own namespaces; read-only but for the devices, of which zero cannot be opened:
                                 shared pages of it would be memory that no process is charged for
    nothing else                 no /etc, no /home, no /sys, no shell, no network, no other process

With a shell a program sees more: all of /usr, read-only, and a root of its own to write to, in memory, of bounded size.

The program is process 1 of its namespaces: there is no other process of its user whose memory it could open, and the
kernel ends all that it has started when it ends. All namespaces are new, all rights are gone, and the environment holds
what stands in `ENVIRONMENT`.
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
FIRST_UID: Final = (
    1_900_000_000  # above the ids of people, of services, and of systemd's containers
)
LAST_UID: Final = FIRST_UID + 2**22 * 64 + 64  # 64 for every process id that Linux gives out
OLDEST: Final = 11  # of Python 3
INSTALL: Final = (
    "install it: apt-get install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora)"
)
_VERSION: Final = re.compile(r"python3\.(\d+)")

# Runs the program as `__main__`. The mark says that it got so far: what fails before is not the program's doing.
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
    """The command line that runs what descriptor `PROGRAM` holds; the words `FILE_BYTES` and `PROCESSES` stand for limits.

    Args:
        with_shell: the program finds the machine's own programs, and may write anywhere that is nothing of the machine's.

    Raises:
        SandboxError: bubblewrap is not installed.
    """
    python = interpreter()
    words = [find(), "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    words += (
        ["--size", FILE_BYTES, "--tmpfs", "/", "--ro-bind", "/usr", "/usr"] if with_shell else []
    )
    words += ["--ro-bind", str(python), str(python)]
    for folder in _libraries(python, *([Path("/usr/local")] if with_shell else [])):
        words += ["--ro-bind", str(folder), str(folder)]
        for packages in _packages(folder):
            words += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
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
    """Where bubblewrap is.

    Raises:
        SandboxError: it is not installed; the sentence names the package.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError(
            f"programs of a model run only inside bubblewrap, and bwrap is not on PATH; {INSTALL}",
            retryable=False,
        )
    return found


def first_uid() -> int | None:
    """Where the user ids of runs begin; None when this process is not root, so that runs keep its own.

    Raises:
        SandboxError: it is root of a container that cannot give out user ids.
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
    """The Python that runs programs: the one behind this virtual environment, or the system's where that is private.

    Runs of a root service have other user ids, which cannot reach an interpreter in root's home.

    Raises:
        SandboxError: none can be reached by everybody.
    """
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = [
        Path(sys.base_prefix, "bin", own),
        Path("/usr/bin/python3"),
        Path("/usr/local/bin/python3"),
    ]
    found = [name.resolve() for name in names if name.exists()]
    for path in found:
        version = _VERSION.fullmatch(path.name)
        if version and int(version[1]) >= OLDEST and (os.geteuid() != 0 or _is_public(path)):
            return path
    raise SandboxError(
        f"programs run under user ids of their own and need a Python 3.{OLDEST} or newer that everybody can read; looked at "
        f"{', '.join(map(str, found))}; install one: apt-get install python3",
        retryable=False,
    )


def _is_public(path: Path) -> bool:
    """Whether every user can read a file and the library beside it."""
    library = path.parent.parent / "lib" / path.name
    if not library.is_dir() or path.stat().st_mode & 0o005 != 0o005:
        return False
    return all(
        folder.stat().st_mode & 0o001 for folder in (*path.parents, *library.parents, library)
    )


def _libraries(python: Path, *others: Path) -> Iterator[Path]:
    """Folders with the standard library and what the interpreter links to, and those below other places."""
    places = (python.parent.parent, *others)
    folders = [Path("/usr/lib"), Path("/usr/lib64"), *(place / "lib" for place in places)]
    yield from dict.fromkeys(folder for folder in folders if folder.is_dir())


def _packages(library: Path) -> Iterator[Path]:
    """What is installed beside an interpreter: it may hold tests, solutions or somebody's code."""
    for pattern in ("python3*/site-packages", "python3*/dist-packages"):
        yield from sorted(folder for folder in library.glob(pattern) if folder.is_dir())


def _merged(path: Path) -> list[str]:
    """A library folder of the root: the same link as outside, or the folder itself."""
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []
