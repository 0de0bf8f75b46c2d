"""The loop of programs that answer or send many small messages."""

from __future__ import annotations

import gc

from triforge.event_loop import new_event_loop, run


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
