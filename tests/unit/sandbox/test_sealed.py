"""Files in memory that nobody can write to: the kernel may be busy with them for a moment."""

import errno
import fcntl
import os

import pytest

from triforge.sandbox.kernel import sealed


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


def test_what_stays_busy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _busy(1_000, monkeypatch)
    with pytest.raises(OSError, match="busy"):
        sealed("x", b"held")
