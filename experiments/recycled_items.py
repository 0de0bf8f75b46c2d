"""Demonstrations of SPARK's questions for the warm start: `python -m experiments.recycled_items --out FILE --count N --seed S`.

The product's recycling asks about careless episodes, K of each service. A verdict is demonstrated with noise, a mended attempt by
another careless episode of the same service: what is read and what is answered is learned, not much of what is right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from demo.demonstrations import Demonstration, demonstrations
from environments.household.family import FAMILY
from experiments.settings import SHOWN
from methods.spark.loop import question_of, question_tasks
from methods.spark.options import SparkOptions
from triforge.config import RunConfig, parse
from triforge.rollout.verdicts import ANSWERS
from triforge.types import (
    GroupTask,
    JudgedGroup,
    Outcome,
    Params,
    Sampling,
    Step,
    Task,
    Trajectory,
    TrajectoryGroup,
)

_K = 4  # episodes of a service
_WRONG = 0.35  # share of the verdicts that are demonstrated the wrong way round
Chat = list[dict[str, str]]


def chats(count: int, seed: int) -> Iterator[Chat]:
    """About the episodes of `count` services: a question to judge each, and a failed attempt to mend where there is one."""
    draw = Random(seed)  # noqa: S311 (noise, not a secret)
    services = FAMILY.generate(count=count, seed=seed, options=SHOWN)
    shown = {str(n): _episodes(params, seed + n) for n, params in enumerate(services)}
    groups, options = [_group(*pair) for pair in shown.items()], SparkOptions(questions=count)
    for asked in question_tasks(groups, _config(), options, 0):
        item = question_of(asked)
        assert item is not None
        if item.verdict:
            verdict_text = ANSWERS[1 if (item.verdict == 1) is (draw.random() >= _WRONG) else -1]
            yield [_message("user", item.text), _message("assistant", verdict_text)]
        else:
            first, *rest = draw.choice(shown[asked.task_id]).messages[:-1]
            yield [first | {"content": first["content"] + item.text}, *rest]


def _config() -> RunConfig:
    spark = {"algorithm": {"preset": "spark"}, "adaptation": {"controller": "none"}}
    return parse(spark | {"reward": {"prompt": "terse"}})


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _episodes(params: Params, seed: int) -> list[Demonstration]:
    return list(demonstrations([params] * _K, seed=seed, random_rate=0.12, forget_rate=0.6))


def _group(name: str, shown: list[Demonstration]) -> JudgedGroup:
    asked = GroupTask(group_id=name, run_id="shown", step=0, task_id=name, purpose="train",
                      rollouts=_K, seed=0, sampling=Sampling())  # fmt: skip
    task = Task(id=name, pool_id="shown", slot=name, family="household", instruction="")
    rows = tuple(_trajectory(name, n, one) for n, one in enumerate(shown))
    return JudgedGroup(
        played=TrajectoryGroup(group=asked, task=task, trajectories=rows), votes=(None,) * _K
    )


def _trajectory(name: str, index: int, shown: Demonstration) -> Trajectory:
    texts = [message["content"] for message in shown.messages]
    steps = tuple(
        Step(index=n, observation=texts[2 * n], response=texts[2 * n + 1], action=texts[2 * n + 1],
             next_observation=texts[2 * n + 2], start=0, end=0)
        for n in range(len(shown.labels))
    )  # fmt: skip
    return Trajectory(
        id=f"{name}-{index}", group_id=name, index=index, task_id=name, task_version=1, instruction=shown.instruction,
        steps=steps, segments=(), outcome=Outcome(value=1 if shown.success else -1),
    )  # fmt: skip


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.recycled_items", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    lines = [json.dumps({"messages": chat}) for chat in chats(given.count, given.seed)]
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
