"""A small disk that can be filled to the last byte without filling the machine's."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

_BLOCK = 1 << 16


class SmallDisk:
    """A folder on a tmpfs of its own, where this process may mount one; a plain folder elsewhere.

    Attributes:
        bounded: whether it is a disk of its own. A folder that is not is never filled.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self._size = megabytes
        self._ballast = folder / ".ballast"
        self.bounded = False

    def mount(self) -> None:
        self.unmount()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}m", "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 (fixed words and our own folder)
        self.bounded = done.returncode == 0

    def unmount(self) -> None:
        """Take it away; one that an interrupted call has left as well."""
        while self.folder.is_mount():
            command = ["umount", "-l", str(self.folder)]
            if subprocess.run(command, capture_output=True, check=False).returncode:  # noqa: S603 (as above)
                break
        self.bounded = False

    def fill(self) -> int:
        """Leave no byte free; returns how many were taken. Does nothing to a disk that is not its own."""
        if not self.bounded:
            return 0
        taken = 0
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while taken < self._size << 20:
                taken += file.write(b"\0" * _BLOCK)
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(b"\0"):
                taken += 1
                if taken >= self._size << 20:
                    break
        return taken

    def free(self) -> None:
        """Give the service back."""
        self._ballast.unlink(missing_ok=True)
