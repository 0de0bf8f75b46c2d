"""Table 1 on two cores: what its arms are, what its report says, and that they go round."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from demo.warm_start import played_with
from experiments.loop import play
from experiments.record import Models, Result
from experiments.report import Page
from experiments.rewriters import REWRITERS
from experiments.table1 import (
    ARMS,
    BASELINES,
    MAIN,
    SEEDS,
    STUDY,
    TUNING_SEEDS,
    Table1Settings,
)
from triforge.config import parse
from triforge.rollout.choices import one_of
from triforge.types import ChatMessage, GenerateRequest, Sampling

assert isinstance(STUDY.quick, Table1Settings)
MODELS = {"policy": "p", "reward": "j", "rewriter": "r"}
FULL = Table1Settings()
assert STUDY.compared
COMPARED, MEASURES = STUDY.compared, STUDY.compared.measures


def document(name: str) -> dict[str, Any]:
    return FULL.document(ARMS[name], 11, MODELS)


def test_each_main_arm_adds_one_part_to_the_one_before() -> None:
    parsed = {name: parse(document(name)) for name in ARMS}
    o, p, r, e, n = (parsed[name] for name in MAIN)
    assert not o.algorithm.resolved.needs_votes
    assert p.algorithm.resolved.use_votes
    assert [a.algorithm.resolved.train_reward_model for a in (o, p, r, e, n)] == [
        False, False, True, True, True
    ]  # fmt: skip
    assert [a.adaptation.chosen.rewrites for a in (o, p, r, e, n)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert n.adaptation == e.adaptation.model_copy(update={"null_control": 1.0})
    assert (
        len({(a.run.steps, a.run.groups_per_step, a.env_adapter.rollouts) for a in parsed.values()})
        == 1
    )
    assert not any(
        a.adaptation.pairs_on_top for a in parsed.values() if a.adaptation.chosen.rewrites
    )
    assert e.algorithm.resolved.train_on_pairs == "both"
    assert set(BASELINES) | set(MAIN) == set(ARMS)
    assert set(STUDY.further) == set(BASELINES)
    assert not set(SEEDS) & set(TUNING_SEEDS)


FEW = tuple(replace(kind, heldout=min(kind.heldout, 1)) for kind in STUDY.quick.tasks)


@pytest.mark.parametrize("name", ["R", "log_ratio"])
def test_an_arm_goes_round(models: Models, name: str) -> None:
    settings = replace(STUDY.quick, steps=1, groups=2, tasks=FEW)
    result = play(name, ARMS[name], 7, settings, models)
    assert set(result.evaluations[0]) == {"step", "sampled", "greedy", *MEASURES}
    assert len(result.steps) == 1
    assert result.tasks["proposals"] == {}


def test_only_the_judges_demonstrations_are_labelled_by_the_planner() -> None:
    settings = FULL.warm_start(1)
    assert (
        played_with("judge", settings)
        == settings.options
        == document("R")["env_adapter"]["options"]
    )
    assert played_with("policy", settings) == {"wording": "terse"}


async def test_a_rewriter_without_a_model_draws_from_the_menu() -> None:
    lines = ["room: a (b), hint: no", "room: same, hint: yes", "goal: x. y"]
    request = GenerateRequest(
        messages=(ChatMessage(role="user", content="?"),), n=4,
        sampling=Sampling(regex=one_of(lines), seed=1),
    )  # fmt: skip
    reply = await REWRITERS["random"](request)
    assert {output.text for output in reply.outputs} <= set(lines)
    assert parse(document("random")) == parse(document("E"))


# ---- the report ----


def _results() -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for place, name in enumerate(("O", "P", "R", "E")):
        for seed in SEEDS:
            result = Result(name, seed)
            end = 0.2 + 0.01 * (seed % 3) + (0.1 + 0.001 * seed) * place - 0.2 * (name == "R")
            modes = dict.fromkeys(MEASURES, end)
            start = dict.fromkeys(MEASURES, 0.05)
            result.evaluations = [{"step": 0.0, **start}, {"step": 60.0, **modes}]
            result.steps = [{"success": 0.1, "tasks/accepted": float(n)} for n in range(12)]
            result.tasks = {"proposals": {"accepted": 2}, "null_control": {}}
            found[name, seed] = asdict(result)
    return found


def test_the_report_tests_what_was_planned_and_says_what_fell(tmp_path: Path) -> None:
    results = _results()
    page = Page(
        seeds=SEEDS, command="make experiment-table1", minutes=5.0, machine="2 cores",
        pictures=COMPARED.draw(results, tmp_path),
    )  # fmt: skip
    text = COMPARED.write(results, FULL.steps, page)
    assert "- Held at 0.05: P > O, E > R, E > O.\n- Not shown: R > P, E > N.\n" in text
    assert "| O < P < R < E, ID, sampled (primary) |" in text
    assert "which are not reported: 921, 922, 923, 924, 925." in text
    for drawn in tmp_path.iterdir():
        assert drawn.stat().st_size < 60_000
        assert drawn.name in text
    assert len(list(tmp_path.iterdir())) == 6
