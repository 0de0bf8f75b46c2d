"""The loop of programs that answer or send many small messages."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading

import pytest

from triforge.event_loop import new_event_loop, run, run_anywhere


def test_an_interrupt_in_a_notebook_ends_the_work() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def cell() -> None:
        run_anywhere(work())

    loop = asyncio.new_event_loop()  # as a kernel has one
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert ended.is_set()


async def threshold() -> tuple[int, int, int]:
    return gc.get_threshold()


def test_a_process_with_such_a_loop_looks_for_cycles_less_often() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 9, 8)
        new_event_loop().close()
        assert gc.get_threshold() == (20_000, 9, 8)
        gc.set_threshold(700, 9, 8)
        assert run(threshold()) == (20_000, 9, 8)
    finally:
        gc.set_threshold(*before)
