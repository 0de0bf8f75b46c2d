"""Trackers get every committed step of a run once, in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from services.trainer.runs.trackers import (
    Reporting,
    Rollout,
    TensorBoard,
    Tracker,
    WeightsAndBiases,
    require_packages,
)
from triforge.config import RunConfig, parse
from triforge.errors import ConfigError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import SCHEMA, read_rollouts, write_step_records
from triforge.types import RunState, RunStep

RUN = RunState(
    id="run-1", name="mine", pool_id="p", status="running", step=0, steps=9, policy_version=1, reward_version=1,
    created_at=0.0, updated_at=0.0,
)  # fmt: skip


def step(number: int, **metrics: float) -> RunStep:
    return RunStep(
        run_id="run-1", step=number, at=1e9 + number, policy_version=number + 1, reward_version=1,
        metrics=metrics or {"success": number / 10},
    )  # fmt: skip


class Committed:
    """The run's steps as the database has them."""

    def __init__(self, count: int) -> None:
        self.steps = [step(number) for number in range(count)]

    def after(self, last: int) -> list[RunStep]:
        return [found for found in self.steps if found.step > last]


class Wall:
    """A tracker of the tests."""

    def __init__(self, first: int = 0, fails_at: int | None = None) -> None:
        self.first = first
        self.fails_at = fails_at
        self.shown: list[int] = []
        self.closed = 0

    def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
        if step.step == self.fails_at:
            raise OSError("no space left on device")
        self.shown.append(step.step)
        self.rollouts = list(rollouts)

    def close(self, status: str) -> None:
        self.closed += 1
        self.status = status


async def test_a_dashboard_gets_every_step_once_and_those_that_it_missed() -> None:
    wall, resumed, committed = Wall(), Wall(first=2), Committed(3)
    makers: list[Callable[[], Tracker]] = [lambda: wall, lambda: resumed]
    reporting = Reporting(makers, committed.after, lambda step: [{"of": step.step}])
    await reporting.update()
    await reporting.update()
    committed.steps.append(step(3))
    await reporting.update()
    assert wall.shown == [0, 1, 2, 3]
    assert resumed.shown == [2, 3], "it has the steps before"
    assert wall.rollouts == [{"of": 3}]
    await reporting.close("failed")
    assert (wall.closed, wall.status) == (1, "failed")


async def test_one_that_fails_costs_the_others_nothing_and_is_left_alone() -> None:
    bad, good = Wall(fails_at=1), Wall()

    def broken() -> Tracker:
        raise RuntimeError("no key")

    committed = Committed(2)
    reporting = Reporting([broken, lambda: bad, lambda: good], committed.after)
    await reporting.update()
    committed.steps.append(step(2))
    await reporting.update()
    assert (bad.shown, bad.closed) == ([0], 1)
    assert good.shown == [0, 1, 2]


async def test_steps_that_were_missed_come_one_by_one_each_with_its_patience() -> None:
    loop = asyncio.get_running_loop()

    class Cancels(Wall):
        def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
            super().show(step, rollouts)
            if step.step == 1:
                loop.call_soon_threadsafe(telling.cancel)

    wall = Cancels()
    telling = asyncio.create_task(Reporting([lambda: wall], Committed(4).after).update())
    with pytest.raises(asyncio.CancelledError):
        await telling
    await loop.shutdown_default_executor()  # whatever was begun is done
    assert wall.shown == [0, 1]


async def test_one_that_hangs_is_given_up() -> None:
    released = threading.Event()

    class Hangs(Wall):
        def show(self, step: RunStep, rollouts: Sequence[Rollout]) -> None:
            released.wait(60)

    bad, good = Hangs(), Wall()
    reporting = Reporting([lambda: bad, lambda: good], Committed(2).after, patience_s=0.5)
    try:
        await reporting.update()
    finally:
        released.set()
    assert good.shown == [0, 1]
    assert bad.closed == 1


def scalars(folder: Path) -> dict[tuple[str, int], float | str]:
    """Return the values of event files by measure and step: of several values the last one."""
    from tensorboardX.event_file_writer import directory_check
    from tensorboardX.proto.event_pb2 import Event

    directory_check(str(folder))
    found: dict[tuple[str, int], float | str] = {}
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):  # records: length, its checksum, the event, its checksum
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            if event.session_log.status == 1:  # START purges the steps from here on
                found = {key: value for key, value in found.items() if key[1] < event.step}
            for value in event.summary.value:
                shown = value.simple_value
                if value.tensor.string_val:
                    shown = value.tensor.string_val[0].decode()
                found[value.tag.removesuffix("/text_summary"), event.step] = shown
    return found


ROLLOUTS: list[Rollout] = [
    {"rollout": f"t-{n}", "task": "t", "outcome": 1, "score": None, "text": "1. [go](http://far)\n2. <b>"}
    for n in (0, 1)
]  # fmt: skip


def track(make: Callable[[], Tracker], steps: list[RunStep]) -> None:
    tracker = make()
    for found in steps:
        if found.step >= tracker.first:
            tracker.show(found, ROLLOUTS)
    tracker.close("finished")


def test_event_files_hold_every_finite_measure_and_versions(tmp_path: Path) -> None:
    track(
        lambda: TensorBoard(tmp_path), [step(0, success=0.25, odd=math.inf), step(1, success=0.5)]
    )
    found = scalars(tmp_path)
    texts = [str(found.pop(("rollouts", number))) for number in (0, 1)]
    assert all(line.startswith("    ") for line in texts[0].splitlines())  # as code, not as links
    assert "1. [go](http://far)" in texts[0]
    assert found == {
        ("success", 0): 0.25, ("version/policy", 0): 1.0, ("version/reward", 0): 1.0,
        ("success", 1): 0.5, ("version/policy", 1): 2.0, ("version/reward", 1): 1.0,
    }  # fmt: skip


def test_weights_and_biases_gets_the_run_under_its_own_id(tmp_path: Path) -> None:
    config = config_of({"wandb_project": "p", "wandb_mode": "offline"})
    track(lambda: WeightsAndBiases(RUN, config, tmp_path), [step(0), step(1)])
    importlib.import_module("wandb").teardown()  # its process writes what it has, and ends
    (written,) = (tmp_path / "wandb").glob("offline-run-*-run-1/run-run-1.wandb")
    assert b"version/policy" in written.read_bytes()
    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/rollouts_1_*")
    assert json.loads(table.read_text())["data"][1] == [*ROLLOUTS[1].values()]


def test_some_rollouts_of_a_step_are_a_table(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    long = "x" * 100_000  # 1.2 MB in all, of which a table shows nothing
    turn = dict.fromkeys(SCHEMA.names) | {"task_id": "t", "instruction": "do", "outcome": 1}
    rows = [
        turn | {"trajectory_id": f"g{group}-{n}", "action": f"a{index}", "votes": [{"value": 1, "text": long}, {"value": -1}]}
        for group in range(3) for n in range(2) for index in range(2)
    ]  # fmt: skip
    uri = write_step_records(store, "steps.parquet", rows)
    tracemalloc.start()
    try:
        found = read_rollouts(store, uri, 3)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert [row["rollout"] for row in found] == ["g0-0", "g1-0", "g2-0"]
    assert (found[0]["text"], found[0]["turns"], found[0]["mean vote"]) == ("1. a0\n2. a1", 2, 0.0)


def config_of(report: dict[str, object]) -> RunConfig:
    return parse({"report": report, "adaptation": {"controller": "none"}})


def test_a_dashboard_without_its_package_or_folder_is_refused_when_the_run_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(str(tmp_path))
    require_packages(config_of({"tensorboard": True, "wandb_project": "p"}), store)
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(__import__("sys").modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match=r"report\.wandb_project: wandb is not installed"):
        require_packages(config_of({"wandb_project": "p"}), store)
    with pytest.raises(ConfigError, match=r"report\.tensorboard: given an artifact store"):
        require_packages(config_of({"tensorboard": True}), ArtifactStore("memory://bucket"))


def test_steps_leave_as_lines_and_as_a_table() -> None:
    import io

    import pyarrow.parquet as pq

    from triforge.store.step_records import steps_jsonl, steps_parquet

    steps = [step(0, a=1.0), step(1, b=2.0)]
    lines = [json.loads(line) for line in steps_jsonl(steps).splitlines()]
    assert [(line["step"], line.get("a"), line.get("b")) for line in lines] == [
        (0, 1.0, None), (1, None, 2.0),
    ]  # fmt: skip
    table = pq.read_table(io.BytesIO(steps_parquet(steps))).to_pylist()
    assert [(row["step"], row["a"], row["b"]) for row in table] == [(0, 1.0, None), (1, None, 2.0)]
    assert pq.read_table(io.BytesIO(steps_parquet([]))).num_rows == 0
