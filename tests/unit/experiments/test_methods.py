"""The experiment on methods: every arm is played and compared, and the table shows the curves."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

import pytest

from environments.household.wording import vocabulary
from experiments import toys
from experiments.loop import play
from experiments.methods import ARMS, COMPARED, STUDY
from experiments.methods_report import table
from experiments.methods_run import MethodsRun
from experiments.record import Models
from experiments.recycled_items import chats
from experiments.study import is_toy
from triforge.rollout.verdicts import ANSWERS


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if not is_toy(arm)])
def test_an_arm_in_the_household_goes_round(models: Models, name: str) -> None:
    result = play(name, ARMS[name], 7, STUDY.quick, models, make=MethodsRun)
    (step,) = result.steps
    assert 0.0 <= step["success"] <= 1.0
    assert (step["rows/policy"] > 0) >= (step["all_same"] < 1)
    assert (step["rows/reward"] > 0) is (name == "istar-household" and step["all_same"] < 1)
    assert ("recycled/reflection/right" in step) is (name == "spark-household")
    assert all(
        "judge_balanced" in one or one["sampled"] in (0.0, 1.0) for one in result.evaluations
    )


def test_what_the_warm_start_judges_and_mends_is_in_words_of_the_household() -> None:
    shown = list(chats(40, 3))
    judged = [chat for chat in shown if chat[1]["content"] in ANSWERS.values()]
    assert len(judged) == 40
    assert 10 < sum(chat[1]["content"] == ANSWERS[1] for chat in judged) < 30
    known = {*vocabulary({"wording": "terse"}), *ANSWERS.values(), *">;?"}
    assert {word for chat in shown for one in chat for word in one["content"].split()} <= known
    assert all(" > " in chat[0]["content"] for chat in shown)


def test_an_arm_of_numbers_writes_its_curve() -> None:
    messages: list[object] = []
    result = toys.play("window", ARMS["window"], 1, tell=messages.append)
    assert messages[:-1] == [{"steps": step} for step in result.steps]
    assert len(result.steps) == 15


def test_every_arm_is_compared_and_its_world_takes_its_options() -> None:
    assert {name for one in COMPARED for name in (one.arm, one.baseline)} == set(ARMS)
    for arm in filter(is_toy, ARMS.values()):
        world = import_module(f"experiments.toys.{arm.config['toy']}")
        signature(world.curve).bind(1, **arm.config["options"])


def test_the_table_shows_quarters_and_what_the_last_differ_by() -> None:
    curves = {"tree": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8, 1.0], "whole": [0.0, 0.2, 0.4, 0.6]}
    found = {
        (arm, seed): {"steps": [{"success": x + seed / 100} for x in curve], "evaluations": []}
        for arm, curve in curves.items()
        for seed in (0, 2)
    }
    first, second = [row for row in table(found).splitlines() if "AT-GRPO" in row]
    assert [cell.strip() for cell in first.split("|")][3:8:4] == ["2", "0.910 ± 0.127"]
    assert first.split("|")[-2].strip() == "+0.300 ± 0.000"
    assert second.split("|")[-2].strip() == ""
