"""The demo deletes only its own folder, and its report is written however the run ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from demo.prepare import clear
from demo.report import rows, write_report
from triforge.cli.train import Trained
from triforge.errors import ConfigError
from triforge.types import PoolState, RunState, RunStep, Verdict


def record(steps: list[RunStep], reason: str = "") -> Trained:
    run = RunState(
        id="run-1", name="demo", pool_id="p", status="failed", step=-1, steps=2, policy_version=1, reward_version=1,
        created_at=0.0, updated_at=0.0, reason=reason,
    )  # fmt: skip
    pool = PoolState(
        id="p", name="p", environment="household", created_at=0.0, tasks={}, proposals={}
    )
    return Trained(
        run=run, steps=steps, before={}, after={}, model=None, pool=pool, proposals=[], seconds=3.0
    )


def step(number: int, metrics: dict[str, float]) -> RunStep:
    return RunStep(
        run_id="run-1", step=number, at=0.0, policy_version=1, reward_version=1, metrics=metrics
    )


def test_a_folder_of_an_earlier_demo_is_emptied(tmp_path: Path) -> None:
    state = tmp_path / "demo"
    state.mkdir()
    (state / "demo.toml").touch()
    (state / "triforge.sqlite").touch()
    clear(state)
    assert not state.exists()
    clear(state)


@pytest.mark.parametrize("name", ["thesis.tex", "triforge.sqlite"])
def test_a_folder_that_no_demo_made_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"--state: given .* expected a new folder"):
        clear(tmp_path)
    assert (tmp_path / name).exists()


def test_a_run_that_failed_before_its_first_step_still_gets_a_report(tmp_path: Path) -> None:
    failed = record([], reason="weights: the folder is <gone>")
    write_report(failed, (), tmp_path / "report.html")
    assert "the folder is &lt;gone&gt;" in (tmp_path / "report.html").read_text()


def test_the_report_begins_with_the_verdict(tmp_path: Path) -> None:
    found = record([step(0, {}), step(1, {})])
    verdict = Verdict(word="worse", text="worse: by <9> points", warnings=("it ran off",))
    run = found.run.model_copy(update={"verdict": verdict})
    write_report(replace(found, run=run), (), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert (
        page.index('"worse">Worse</b>: by &lt;9&gt; points')
        < page.index("it ran off")
        < page.index("The <dfn>policy")
    )


def test_the_report_shows_how_far_both_models_moved(tmp_path: Path) -> None:
    measured = step(1, {"policy/kl_k3": 0.0125, "reward/kl_k3": 0.0375})
    write_report(record([step(0, {}), measured]), (), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<td>0.0125</td>" in page
    assert "<td>0.0375</td>" in page


def test_the_greedy_row_is_the_difference_of_first_and_last_evaluation() -> None:
    steps = [
        step(n, {"eval/greedy": share, "eval/greedy_episodes": 100.0})
        for n, share in ((0, 0.5), (1, 0.25), (2, 0.75))
    ]
    found = {row[0]: row[1:] for row in rows(record(steps))}
    before, after, remark = found["held-out success, greedy"]
    assert (before[:5], after[:5], remark) == ("0.500", "0.750", "+25.0 points")
