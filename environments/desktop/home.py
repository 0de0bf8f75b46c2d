"""The agent's home folder, seen from outside: written before the episode, read after it, never through its links.

What lies there was made by a model. A name may be a link to somewhere else, a pipe that never ends, or a file of any size;
each of them counts as absent.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from triforge.errors import InputError

MAX_FILE: Final = 2**20
MAX_ENTRIES: Final = 2000
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENTER: Final = _READ | os.O_DIRECTORY


def inside(path: str) -> PurePosixPath:
    """A path below the home folder."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path or not parts.parts:
        raise InputError(f"desktop: path {path!r} must lead to something below the home folder")
    return parts


def write(home: Path, path: str, content: str) -> None:
    """Write a file before the episode, with the folders it lies in."""
    target = home / inside(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, encoding="utf-8")


def read(home: Path, path: str) -> str | None:
    """The text of a file, None when there is no plain file of at most 1 MiB. Bytes that are no UTF-8 are replaced."""
    descriptor = _open(home, inside(path), _READ)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE:
            return None
        return file.read(MAX_FILE).decode("utf-8", "replace")


def names(home: Path, path: str = "") -> list[str] | None:
    """What lies in a folder, sorted, folders with a slash; None when it is no folder. Hidden names are left out."""
    descriptor = _open(home, inside(path) if path else PurePosixPath(), _ENTER)
    if descriptor is None:
        return None
    try:
        with os.scandir(descriptor) as entries:
            found = [
                entry.name + "/" * entry.is_dir(follow_symlinks=False)
                for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)
                if not entry.name.startswith(".")
            ]
    finally:
        os.close(descriptor)
    return sorted(name.encode("utf-8", "replace").decode("utf-8") for name in found)


def exists(home: Path, path: str) -> bool:
    """Whether there is anything of that name, be it a link that leads nowhere."""
    parts = inside(path)
    descriptor = _open(home, parts.parent, _ENTER)
    if descriptor is None:
        return False
    try:
        os.stat(parts.name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def tree(home: Path) -> str:
    """Files and folders of two levels, one a line."""
    lines = []
    for name in names(home) or []:
        lines.append(name)
        if name.endswith("/"):
            lines += [name + below for below in names(home, name) or []]
    return "\n".join(lines[:100])


def size(home: Path, limit: int) -> int:
    """Bytes in all files below, or `limit` as soon as that many, or too many files, are found."""
    total = seen = 0
    folders = [home]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                    if total >= limit or seen > 10 * MAX_ENTRIES:
                        return limit
        except OSError:  # it was removed meanwhile, or closed to us
            continue
    return total


def _open(home: Path, path: PurePosixPath, flags: int) -> int | None:
    """Open name by name, so that no link on the way is followed."""
    folder = os.open(home, _ENTER)
    steps = path.parts
    try:
        for step in steps[:-1]:
            below = os.open(step, _ENTER, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(steps[-1] if steps else ".", flags, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)
