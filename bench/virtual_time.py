"""An event loop whose clock jumps to the next thing that is due: hours of waiting pass in seconds of computing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Jumping(selectors.DefaultSelector):
    """Never waits: what the loop would have waited is added to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everything waits and nothing is due")
        if not found and timeout is not None:
            self.now += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Seconds are virtual; work for threads is done at once, on the spot."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002
        """Call it now: while another thread worked, the clock would run away."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (passed to the future)
            future.set_exception(error)
        return future


def run(work: Coroutine[Any, Any, _T]) -> _T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
