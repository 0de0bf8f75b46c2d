"""Sums as a taskset of `verifiers`. Loaded by `vf-eval` in its own environment; imports nothing of ours."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """A question, and what the answer must hold."""

    total: int


class SumTask(vf.Task[SumData]):
    """A question whose answer is a sum."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """1 or 0."""
        return float(str(self.data.total) in trace.last_reply)


class SumsConfig(vf.TasksetConfig):
    """How many tasks."""

    count: int = 8


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    """The tasks."""

    def load(self) -> list[SumTask]:
        """All of them."""
        return [
            SumTask(SumData(prompt=f"What is {n} + {n + 1}?", total=2 * n + 1), self.config.task)
            for n in range(self.config.count)
        ]


__all__ = ["SumsTaskset"]
