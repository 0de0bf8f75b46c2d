"""The trainer's log of a run: its begin, each committed step, its end, with the run's id."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.fake_loop import Loop, loop_of
from triforge.broker import Broker
from triforge.telemetry.logs import JsonLines


@pytest.fixture
async def loop(broker: Broker, redis_url: str, tmp_path: Path) -> AsyncIterator[Loop]:
    async with loop_of(broker, redis_url, tmp_path) as made:
        yield made


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log of the orchestrator as its process would write it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines("trainer", "api"))
    logger = logging.getLogger("services.trainer")
    before = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(before)


def entries(text: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.getvalue().splitlines()]


async def test_a_run_is_in_the_log_from_its_beginning_to_its_end_step_by_step(
    loop: Loop, lines: io.StringIO
) -> None:
    run = await loop.conduct(loop.submit())
    found = entries(lines)
    assert [line["message"].partition(":")[0] for line in found] == [
        "the run goes on after step 0 of 2",
        "step 0 is committed",
        "step 1 is committed",
        "step 2 is committed",
        "the run is finished",
    ]
    assert {(line["run"], line["pool"], line["level"]) for line in found} == {
        (run.id, "pool", "info")
    }
    second = found[2]
    assert (second["step"], second["policy"], second["reward"]) == ("1", "2", "2")
    assert "success 0.5" in second["message"]
    assert "eval/greedy" not in second["message"], "measures that a step lacks are left out"


async def test_a_run_that_fails_says_why_in_the_log(loop: Loop, lines: io.StringIO) -> None:
    run = loop.store.create(name="run", pool_id="pool", config={"run": {"groups_per_step": "many"}})
    await loop.conduct(run)
    last = entries(lines)[-1]
    assert last["run"] == run.id
    assert last["message"].startswith("the run is failed: ")
    assert "run.groups_per_step" in last["message"]
