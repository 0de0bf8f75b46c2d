"""One run of the experiment on methods in the household."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from experiments.vote_quality import Row
from methods.spark.loop import judge_measures, question_tasks
from methods.spark.options import SparkOptions
from triforge.types import GroupTask, JudgedGroup

_VERDICTS = 8  # a held-out rollout


class MethodsRun(Run):
    """In which the policy may judge and mend what it played, and no vote is cast that could be looked at again."""

    _first: Sequence[GroupTask] = ()  # the questions about what the first weights played

    async def _train(self, step: int, groups: list[JudgedGroup], trust: float) -> dict[str, float]:
        started = time.monotonic()
        asked = await self._methods.more_groups(step, groups)
        answered = list(await asyncio.gather(*map(self._play_group, asked)))
        seconds = {"seconds/recycled": time.monotonic() - started}
        found = await super()._train(step, groups + answered, trust)
        return found | seconds

    async def _evaluate(self, step: int) -> dict[str, float]:
        """In all arms also how well the policy judges what it just played, and what the first weights played."""
        found = await super()._evaluate(step)
        asked = [
            one.model_copy(update={"rollouts": _VERDICTS})
            for one in question_tasks(self._sampled, self._config, SparkOptions(), step)
        ]
        self._first = self._first or asked
        for name, questions in (("", asked), ("/first", self._first)):
            judged = judge_measures(await asyncio.gather(*map(self._play_group, questions)))
            if "eval/judge_balanced" in judged:
                found[f"judge_balanced{name}"] = judged["eval/judge_balanced"]
        return found

    async def _judge_again(self) -> dict[str, list[Row]]:
        return {}


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one run in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=MethodsRun)
