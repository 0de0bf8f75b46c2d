"""Hooks of the training loop: measures of the windows of difficulty levels."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from services.trainer.loop.hooks import LoopHooks, Measures


class Rlve(LoopHooks):
    """Measures the run's windows as far as adaptation has come."""

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Return the tops of the windows."""
        read = self.run.parts.store.controller_notes
        notes = await asyncio.to_thread(read, self.run.run_id, self.run.name)
        return level_measures({kind: note["high"] for kind, note in notes.items()})


def level_measures(tops: Mapping[str, int]) -> dict[str, float]:
    """Return the top of each kind's window as `level/<kind>` (`level` if all tasks share one), `levels/mean`, `/lowest`, `/highest`."""
    if not tops:
        return {}
    high = [float(top) for top in tops.values()]
    found = {f"level/{kind}" if kind else "level": float(top) for kind, top in tops.items()}
    ends = {"lowest": min(high), "highest": max(high), "mean": math.fsum(high) / len(high)}
    return found | {f"levels/{name}": value for name, value in ends.items()}
