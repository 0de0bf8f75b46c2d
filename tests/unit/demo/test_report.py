"""The report: a held-out task before and after, in a page that needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from pyarrow import parquet

from demo.episodes import Pair, find_pair, judged
from demo.report import MEANINGS, rows, write_report
from services.reward.app import JudgeApi, create_app
from tests.unit.demo.test_demo import record, step
from triforge.types import (
    Criteria,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    Sampling,
    VersionSpan,
)

EVIL = '<img src=x onerror="alert(1)">'


def played(
    task: str,
    at: int,
    outcome: int,
    actions: Sequence[str],
    *,
    mode: str = "greedy",
    purpose: str = "evaluate",
) -> list[dict[str, Any]]:
    """The rows of one episode, the last step first."""
    return [
        {
            "step": at, "purpose": purpose, "task_slot": task, "trajectory_id": f"run-1-{at:05d}-{mode}-{task}",
            "segment": 0, "step_index": n, "instruction": f"put {task} {EVIL}", "observation": "room", "response": action,
            "action": action, "next_observation": f"saw {action}", "label": 1 - 2 * (n % 2), "outcome": outcome,
        }
        for n, action in reversed(list(enumerate(actions)))
    ]  # fmt: skip


def exported(path: Path, *episodes: list[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist([row for rows in episodes for row in rows]), path)
    return path


def found(folder: Path) -> Pair:
    pair = find_pair(
        exported(
            folder / "run.parquet",
            played("mug", 0, -1, ["go desk", "go bed"]),
            played("mug", 10, -1, ["go desk"]),
            played("mug", 20, 1, ["go desk", "take mug", "put mug"]),
            played("cup", 0, -1, ["go desk"]),
            played("cup", 20, 1, ["go bed", "take cup"]),
            played("pan", 0, 1, ["go desk"]),
            played("pan", 20, -1, ["go bed"]),
            played("jar", 0, -1, ["wait"], mode="sampled"),
            played("jar", 20, 1, ["win"], mode="sampled"),
            played("pot", 20, 1, ["win"], purpose="train"),
        )
    )
    assert pair is not None
    return pair


def test_the_task_that_is_shown_is_the_quickest_that_became_solved(tmp_path: Path) -> None:
    pair = found(tmp_path)
    assert (pair.mode, pair.tasks, pair.gained, pair.lost) == ("greedy", 3, 2, 1)
    assert (pair.before.step, pair.before.solved) == (0, False)
    assert (pair.after.step, pair.after.solved) == (20, True)
    assert [turn.action for turn in pair.after.turns] == ["go bed", "take cup"]


def test_a_run_with_one_evaluation_or_no_record_has_no_pair(tmp_path: Path) -> None:
    once = exported(tmp_path / "run.parquet", played("mug", 0, -1, ["go desk"]))
    assert find_pair(once) is None
    assert find_pair(tmp_path / "none.parquet") is None


async def test_the_judge_votes_on_every_step_of_both(tmp_path: Path) -> None:
    asked: list[str] = []

    async def vote(requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        asked.extend(request.model_dump_json() for request in requests)
        spans = (VersionSpan(version=21, start=0, end=1),)
        texts = (r"\boxed{1}", "hm", r"\boxed{-1}")
        outputs = tuple(
            GenerateOutput(text=text, ids=(9,), logprobs=(0.0,), versions=spans, finish="stop")
            for text in texts
        )
        return [GenerateReply(prompt_ids=(5,), outputs=outputs) for _ in requests]

    app = create_app(api=JudgeApi(vote, sampling=Sampling(), prompt="terse"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://reward"
    ) as reward:
        pair = await judged(found(tmp_path), reward, Criteria(reference="open window"))
    votes = [turn.votes for turn in (*pair.before.turns, *pair.after.turns)]
    assert votes == [(1, 0, -1)] * 3
    assert len(asked) == 3
    assert all("open window" in prompt for prompt in asked)


def test_the_page_shows_the_pair_needs_no_network_and_takes_no_text_for_html(
    tmp_path: Path,
) -> None:
    pair = found(tmp_path)
    turns = tuple(replace(turn, votes=(1, -1)) for turn in pair.after.turns)
    pair = replace(pair, after=replace(pair.after, turns=turns))
    row = {
        "eval/greedy": 0.5,
        "eval/greedy/low": 0.25,
        "eval/greedy/high": 0.75,
        "judge/votes": 2.0,
    }
    write_report(record([step(0, row), step(20, row)]), (EVIL,), tmp_path / "report.html", pair)
    page = (tmp_path / "report.html").read_text()
    assert "take cup" in page
    assert page.count('aria-label="votes 1, -1"') == 2
    assert "of the 2 tasks, of 3" in page
    assert '<polygon class="s0"' in page  # the interval
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert not re.search(r"<script|<img|<link|(src|href)=[\"']|url\(|@import", page)
    assert "&lt;img" in page
    (tmp_path / "run").mkdir()
    write_report(record([step(0, row)]), (), tmp_path / "report.html")
    assert '<a href="run/index.html">' in (tmp_path / "report.html").read_text()


def test_every_measure_of_the_table_is_explained() -> None:
    row = {
        "eval/greedy": 0.5,
        "eval/sampled": 0.5,
        "judge/balanced": 0.5,
        "judge/votes": 1.0,
        "in_band": 0.5,
    }
    assert {line[0] for line in rows(record([step(0, row)]))} == set(MEANINGS)
