"""Programs and tests in the whole loop: the policy writes programs, the reward model tests, and both are trained.

The model knows nothing, so its answers are held to a few: programs of which one in three is right, and tests that are
right or wrong. What counts is that every program met every test, and that the record gives the same rewards again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.one_process import OneProcess
from methods.cure.arithmetic import NO_GOOD_PROGRAM, generated_test_rewards
from tests.one_process.test_configs import run_of
from triforge.config import merge
from triforge.types import PoolRequest, TaskUpload

pytestmark = pytest.mark.timeout(240)

GROUPS, ROLLOUTS, TESTS = 2, 8, 6
# the right program prints 1 whatever it reads; the one that prints what it read passes half of the hidden tests
HIDDEN: Any = [{"input": "1\n", "output": "1\n"}, {"input": "2\n", "output": "1\n"}]
CHOICES: dict[str, Any] = {
    "run": {"groups_per_step": GROUPS},
    "models": {
        "policy": {
            "max_new_tokens": 48,
            "temperature": 5.0,
            "regex": r"```python\nprint\((1|2|input\(\))\)\n```",
        },
        "reward": {
            "max_new_tokens": 64,
            "temperature": 5.0,
            "regex": r"```input\n[12]\n```\n```output\n[12]\n```",
        },
    },
    "env_adapter": {"rollouts": ROLLOUTS},
    "reward": {"votes": TESTS},
    "adaptation": {"controller": "none"},
}


@pytest.mark.usefixtures("sandbox")
async def test_programs_and_tests_train_each_other_for_two_steps(
    tmp_path: Path, any_text_model: Path
) -> None:
    tasks = tuple(
        TaskUpload(params={"question": f"Print 1, whatever you read ({n}).", "tests": HIDDEN})
        for n in range(GROUPS)
    )
    pool = PoolRequest(name="unit-tests", environment="code", tasks=tasks)
    models = dict.fromkeys(("policy", "reward"), any_text_model)
    async with OneProcess(tmp_path, models) as deployment:
        made = await deployment.create_pool(pool)
        assert made.programs
        run = await deployment.train(made.id, merge(run_of("code"), CHOICES))
        steps = deployment.steps(run.id)[1:]
        records = deployment.records(run.id)
    assert run.status == "finished", run.reason
    for step in steps:
        metrics = step.metrics
        assert metrics["infrastructure_failures"] == metrics["unit_tests/failed"] == 0
        assert metrics["unit_tests/written"] == GROUPS * TESTS
        assert metrics["unit_tests/invalid"] == 0
    assert sum(step.metrics["rows/policy"] for step in steps) > 0
    assert sum(step.metrics["rows/reward"] for step in steps) > 0
    assert steps[-1].policy_version > 0
    assert steps[-1].reward_version > 0
    _check(records)


def _check(records: list[dict[str, Any]]) -> None:
    """Every verdict is what the programs print, and every reward follows from the verdicts."""
    groups = [record for record in records if record["texts"]]
    assert len(groups) == 2 * GROUPS
    by_id = {record["trajectory_id"]: record for record in records}
    for group in groups:
        programs = [by_id[name] for name in json.loads(group["extra"])["cure"]]
        assert len(programs) == ROLLOUTS
        tests = [json.loads(text["extra"])["cure"] for text in group["texts"]]
        for test in tests:
            outputs = [_printed(program["action"], test["input"]) for program in programs]
            assert test["accepts"] == [text == test["output"].strip() for text in outputs]
        good = [program["outcome"] == 1 for program in programs]
        rewards = generated_test_rewards(good, [test["accepts"] for test in tests])
        if rewards is None:
            assert {text["reason"] for text in group["texts"]} == {NO_GOOD_PROGRAM}
        else:
            assert [text["reward"] for text in group["texts"]] == rewards
        for program in programs:
            right = [_printed(program["action"], test["input"]) == "1" for test in HIDDEN]
            assert program["reward"] == program["share"] == sum(right) / len(right)


def _printed(program: str, given: str) -> str:
    return given.strip() if "input" in program else "1" if "(1)" in program else "2"
