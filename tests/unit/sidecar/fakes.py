"""A sidecar without a server, and tasks of an environment that counts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from triforge.sidecar import Credit, DrawnTask, Rollout


def task(name: str, target: int, rollouts: int = 2) -> DrawnTask:
    ids = tuple(f"{name}{n}" for n in range(rollouts))
    return DrawnTask(name, ids, [{"role": "user", "content": "go"}], {"params": {"target": target}}, {})  # fmt: skip


class Count:
    """Won after as many answers as the task asks for."""

    success: bool | None = None

    def __init__(self, drawn: DrawnTask) -> None:
        self._left = int(drawn.task["params"]["target"])

    def start(self) -> str:
        return "count"

    def step(self, answer: str) -> tuple[str, bool]:
        assert answer == "up"
        self._left -= 1
        self.success = self._left == 0
        return f"left {self._left}", self._left == 0


class FakeSidecar:
    """Rewards a rollout with its place in the report. With a `window`, a task is free when so few groups are in play."""

    def __init__(self, *tasks: DrawnTask, window: int = 1000, replaced: bool = False) -> None:
        self.tasks, self.reports = [*tasks], list[tuple[int, list[Rollout]]]()
        self._free, self._replaced = threading.Semaphore(window), replaced
        self.reported_once = threading.Event()

    @property
    def reported(self) -> list[Rollout]:
        return [rollout for _, report in self.reports for rollout in report]

    def draw(self, n: int) -> list[DrawnTask]:
        assert self._free.acquire(timeout=20.0), "no group was reported"
        drawn, self.tasks = self.tasks[:n], self.tasks[n:]
        return drawn

    def curriculum(self) -> dict[str, Any]:
        return {"step": 7}

    def report(self, rollouts: Sequence[Rollout], *, policy_version: int) -> list[Credit]:
        self.reports.append((policy_version, [*rollouts]))
        self._free.release()
        self.reported_once.set()
        if self._replaced:
            return [Credit(one.id, reason="its group is played anew") for one in rollouts]
        return [
            Credit(one.id, reward=None if one.error else float(n), votes=[[n]], advantages=[0.5])
            for n, one in enumerate(rollouts)
        ]
