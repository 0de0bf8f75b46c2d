"""Moments in which the kernel refuses: to seal a file in memory, to show the files of a process that ends."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triforge.sandbox.kernel import files, sealed


def _busy(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = fcntl.fcntl, [times]

    def answers(fd: int, command: int, argument: int = 0) -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EBUSY, "busy")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", answers)


def test_a_busy_page_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _busy(2, monkeypatch)
    fd = sealed("x", b"held")
    try:
        assert os.read(fd, 9) == b"held"
        with pytest.raises(PermissionError):
            os.write(fd, b"y")
    finally:
        os.close(fd)


def test_a_page_that_stays_busy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _busy(1_000, monkeypatch)
    with pytest.raises(OSError, match="busy"):
        sealed("x", b"held")


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user")
def test_files_of_a_hidden_process_are_none_once_it_has_ended() -> None:
    """Another user asks about a process of root."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        with pytest.raises(PermissionError):
            files(process.pid, 65534)
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert files(process.pid, 65534) == 0, "a zombie"
    assert files(process.pid, 65534) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user")
def test_files_of_a_process_that_is_giving_back_its_memory_are_none() -> None:
    """The kernel refuses its root for a while, before it is a zombie."""
    heavy = "import sys; held = bytearray(2**28); held[::4096] = bytes(2**16); sys.stdin.read(); import os; os._exit(0)"
    with subprocess.Popen([sys.executable, "-c", heavy], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        stat, fields = Path("/proc", str(process.pid), "stat"), ["R"]
        while fields[0] != "Z":
            fields = stat.read_text().rpartition(") ")[2].split()
            with (
                contextlib.nullcontext()
                if int(fields[6]) & 4
                else contextlib.suppress(PermissionError)
            ):
                assert files(process.pid, 65534) == 0
