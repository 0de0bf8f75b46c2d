"""Draws and reports of trainers whose episodes share one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from triforge.sidecar.client import Credit, DrawnTask, RefusedError, Rollout, Sidecar


class Groups:
    """Groups of rollouts, each drawn when it is to be played and reported as a whole. A sidecar that is away is waited for."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._drawing = asyncio.Lock()
        self._free: list[DrawnTask] = []

    async def draw(self) -> DrawnTask:
        """Return a task, with an id for each rollout of its group."""
        async with self._drawing:
            if not self._free:
                await _apart(self._draw)  # cancelled: the next one gets what it draws
            return self._free.pop(0)

    async def version(self) -> int:
        """Return the step of the run, for trainers that do not say which version of the policy samples."""
        return int((await _apart(self._sidecar.curriculum))["step"])

    async def report(self, rollouts: Sequence[Rollout], version: int) -> list[Credit]:
        """Report the group that these rollouts are; return their credit in the same order.

        Raises:
            RefusedError: something that was measured has no reward, because the group is played anew.
        """
        report = partial(self._sidecar.report, rollouts, policy_version=version)
        credits: list[Credit] = await _apart(report)
        for rollout, credit in zip(rollouts, credits, strict=True):
            if credit.reward is None and not rollout.error:
                raise RefusedError(f"rollout {rollout.id} has no reward: {credit.reason}")
        return credits

    def abandon(self, drawn: DrawnTask) -> None:
        """Say that a group is not played to its end, without waiting for an answer."""
        lost = [Rollout(name, error="the trainer cancelled it") for name in drawn.rollouts]
        report = partial(self._sidecar.report, lost, policy_version=0)
        threading.Thread(target=report, daemon=True).start()

    def _draw(self) -> None:
        self._free += self._sidecar.draw(1)


async def _apart(call: Callable[[], Any]) -> Any:
    """Return what a call returns that may wait for long, in a thread that takes none of the loop's and does not keep the program alive."""
    found = Future[Any]()

    def work() -> None:
        found.set_running_or_notify_cancel()
        try:
            found.set_result(call())
        except Exception as error:  # noqa: BLE001 (raised where it is awaited)
            found.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(found)
