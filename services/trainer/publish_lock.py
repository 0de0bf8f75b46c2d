"""The lock of whoever publishes versions of a model, on the volume that the versions lie on.

The lease of a batch chooses who trains it, but says nothing of a process that stood still for longer than its lease and comes
back in the middle of a publishing. The lock does; it ends with the process, however that ends. A process that neither ends
nor goes on would hold it for ever: who has waited for `grace_s` takes the file off the disk and locks one of its own, and
the other one finds so before it gives anything its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from services.trainer.distributed import Interrupted
from triforge.errors import StorageError, UnavailableError, WeightsError
from triforge.store.artifacts import storage_error

log = logging.getLogger(__name__)

GRACE_S = 60.0
_PAUSE_S = 0.1


class LoneWriter:
    """The lock of one model's versions.

    Args:
        folder: it lies there; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._lock: IO[str] | None = None

    @contextlib.contextmanager
    def held(self, should_stop: Callable[[], bool], grace_s: float) -> Iterator[None]:
        """Hold the lock; waits for another process that does.

        Args:
            should_stop: asked while it waits.
            grace_s: seconds; for so long the other one may go on.

        Raises:
            Interrupted: `should_stop` said so.
            StorageError: disk full or no permission.
            UnavailableError: the body failed, or called `check`, when somebody had passed it by.
        """
        with self._wait(should_stop, grace_s) as self._lock:
            try:
                yield
            except (StorageError, WeightsError):
                self.check()  # whoever passed us by sweeps away what we have not finished
                raise
            finally:
                self._lock = None

    def check(self) -> None:
        """Go on only if the lock is still ours, or none was asked for.

        Raises:
            UnavailableError: somebody passed this process by.
        """
        if self._lock is not None and not self._is_ours(self._lock):
            raise UnavailableError(
                f"{self._path}: this learner stood still while it published, and another one has taken the step"
            )

    def _wait(self, should_stop: Callable[[], bool], grace_s: float) -> IO[str]:
        until = time.monotonic() + grace_s
        while True:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                lock = self._path.open("a")
            except OSError as error:
                raise storage_error("write", str(self._path), error) from error
            if _is_locked(lock) and self._is_ours(lock):
                return lock
            lock.close()
            if should_stop():
                raise Interrupted
            if time.monotonic() >= until:
                log.warning("%s: held for over %g s; its holder is passed by", self._path, grace_s)
                self._path.unlink(missing_ok=True)
                until = time.monotonic() + grace_s
            else:
                time.sleep(_PAUSE_S)

    def _is_ours(self, lock: IO[str]) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(lock.fileno()))
        except FileNotFoundError:
            return False


def _is_locked(lock: IO[str]) -> bool:
    """Whether the lock is ours now. A volume that knows no locks keeps nobody out."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("%s cannot be locked: %s", lock.name, error)
    return True
