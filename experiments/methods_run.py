"""One run of the experiment on methods in the household."""

from __future__ import annotations

from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from experiments.vote_quality import Row


class MethodsRun(Run):
    """In which no vote is cast that could be looked at again."""

    async def _judge_again(self) -> dict[str, list[Row]]:
        return {}


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one run in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=MethodsRun)
