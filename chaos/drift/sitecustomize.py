"""Python reads this file at its start where this folder is on PYTHONPATH: the process then lives at another time of day.

`CHAOS_CLOCK_SHIFT_S` is added to what `time.time` says, which is what Celery, kombu and triforge ask. Monotone clocks are
not touched: they differ between machines anyway.
"""

import os
import time

_SHIFT_S = float(os.environ.get("CHAOS_CLOCK_SHIFT_S", "0"))
_now, _now_ns = time.time, time.time_ns


def _shifted() -> float:
    return _now() + _SHIFT_S


def _shifted_ns() -> int:
    return _now_ns() + int(_SHIFT_S * 1e9)


time.time, time.time_ns = _shifted, _shifted_ns
