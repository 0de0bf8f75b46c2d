"""One run of the experiment on methods in the household."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.loop import Run
from experiments.vote_quality import Row
from methods.spark.loop import judge_measures, question_tasks
from methods.spark.options import SparkOptions
from services.trainer.loop.hooks import Measures
from triforge.types import GroupTask, JudgedGroup

_VERDICTS = 8  # a held-out rollout


class MethodsRun(Run):
    """A run whose evaluations also measure how well the policy judges, in all arms; no votes are compared."""

    _first: Sequence[GroupTask] = ()  # the questions about what the first weights played

    async def more_groups(self, step: int, groups: Sequence[JudgedGroup]) -> list[GroupTask]:
        """Return questions about the held-out rollouts, and about those of the first weights."""
        if groups[0].played.group.purpose != "evaluate":
            return []
        asked = question_tasks(groups, self._config, SparkOptions(), step)
        self._first = self._first or asked
        return [
            task.model_copy(
                update={"group_id": f"{task.group_id}-{step}-{name}", "rollouts": _VERDICTS}
            )
            for name, tasks in (("now", asked), ("first", self._first))
            for task in tasks
        ]

    def evaluated(self, groups: Sequence[JudgedGroup]) -> Measures:
        """Add the balanced accuracy of the verdicts to the evaluation."""
        measures = super().evaluated(groups)
        for name, ending in (("", "-now"), ("/first", "-first")):
            asked = [g for g in groups if g.played.group.group_id.endswith(ending)]
            judged = judge_measures(asked).get("eval/judge_balanced")
            if judged is not None:
                self._evaluation[f"judge_balanced{name}"] = judged
        return measures

    async def _judge_again(self) -> dict[str, list[Row]]:
        return {}
