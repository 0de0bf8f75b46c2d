"""Sparse outcomes: what its arms differ by, that a judge is taught before them, and that its page names the better baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import judge
from experiments.loop import play
from experiments.record import Models
from experiments.report import Page
from experiments.sparse import (
    ARMS,
    BEST,
    MAIN,
    SEEDS,
    STUDY,
    TUNING_SEEDS,
    SparseSettings,
)
from triforge.config import RunConfig, parse
from triforge.rollout.verdicts import ANSWERS

MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}


def config(name: str) -> RunConfig:
    return parse(STUDY.full.document(ARMS[name], SEEDS[0], MODELS))


def test_arms_differ_by_votes_by_what_teaches_the_judge_and_by_rewrites() -> None:
    trained = {name: config(name).trained for name in MAIN}
    assert [n for n in MAIN if trained[n] == ("policy",)] == ["O", "O_index", "O_adapted"]
    teaching = [n for n in MAIN if config(n).algorithm.resolved.train_reward_model]
    assert teaching == ["R", "F", "E", "N"]
    assert [n for n in MAIN if config(n).adaptation.chosen.rewrites] == ["E", "N", "O_adapted"]
    assert config("R").algorithm == config("E").algorithm
    assert config("E").adaptation == config("N").adaptation.model_copy(update={"null_control": 0.0})
    assert {config(n).run for n in MAIN} == {config("O").run}, "equal episodes"
    assert not {*SEEDS} & {*TUNING_SEEDS}


def test_arms_of_the_record_keep_the_updates_that_they_were_played_with() -> None:
    named = {name: config(name).methods.named for name in ("O", "R", "E", "R_12")}
    updates = [
        audit and audit.model_dump()["updates"]
        for audit in (one.get("audit") for one in named.values())
    ]
    assert updates == [None, 36, 36, 12]


@pytest.mark.parametrize("arm", ["planted", "E"])
def test_an_arm_goes_round_and_its_labelled_rollouts_may_teach_a_judge(
    arm: str, models: Models, tmp_path: Path
) -> None:
    settings = STUDY.quick
    assert isinstance(settings, SparseSettings)
    settings = replace(settings, steps=1)
    file = tmp_path / "judge.jsonl"
    result = play(arm, ARMS[arm], 7, settings, models, labelled=file)
    assert len(result.evaluations) == 2
    chats = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({chat["group"] for chat in chats}) == settings.groups * settings.rollouts
    assert {chat["messages"][-1]["content"] for chat in chats} <= set(ANSWERS.values())
    assert all(" ? put " in chat["messages"][0]["content"] for chat in chats), "a solution ends so"


def test_the_judge_is_taught_by_runs_of_seeds_that_are_not_reported() -> None:
    assert set(judge.SEEDS) <= set(TUNING_SEEDS)
    assert not any(config(arm).algorithm.resolved.train_reward_model for arm in judge.TEACHERS)


def test_the_page_compares_with_the_better_arm_without_votes(tmp_path: Path) -> None:
    value = dict(zip(MAIN, (0.1, 0.2, 0.15, 0.3, 0.12, 0.4, 0.3, 0.1, 0.5, 0.1), strict=True))
    results = {
        (arm, seed): {
            "evaluations": [{"step": 0.0, "sampled": 0.0}, {"step": 30.0, "sampled": value[arm] + 0.001 * (seed % 3)}],
            "steps": [{"step": 1, "success": 0.1, "in_band": 0.1}],
            "late": {"success": 0.1}, "tasks": {"proposals": {}, "null_control": {}}, "seconds": 1.0,
        }
        for arm in MAIN for seed in SEEDS[:3]
    }  # fmt: skip
    page = Page(seeds=SEEDS[:3], command="c", minutes=1, machine="m", pictures={})
    assert STUDY.compared
    text = STUDY.compared.write(results, 30, page)
    assert f"`{BEST}` is `O_index`" in text
    assert "+0.100" in text
    assert "rule: none." in text
    results["planted", SEEDS[1]]["evaluations"] = [
        {"step": 0.0, "sampled": 0.0},
        {"step": 20.0, "sampled": 0.01},
    ]
    text = STUDY.compared.write(results, 20, page)
    assert f"rule: {SEEDS[1]}." in text
    row = next(line for line in text.splitlines() if line.startswith(f"| {SEEDS[1]} "))
    assert not any(cell.strip() for cell in row.split("|")[2:])
