"""The experiment on the judge's targets: its runs, and what its table says."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from experiments.judges import ARMS, STUDY, TARGETS, JudgesSettings
from experiments.judges_report import table
from experiments.judges_run import JudgesRun
from experiments.loop import play
from experiments.record import Models, Result
from triforge.config import parse


def test_a_run_trains_every_judge_and_measures_each_on_old_and_new_episodes(
    models: Models,
) -> None:
    result = play("2e-4", ARMS["2e-4"], 7, STUDY.quick, models, make=JudgesRun)
    # An untrained policy never wins: there is nothing for it to learn, and a judge that sees the solution learns all the same.
    assert (result.steps[0]["all_same"], result.steps[0]["rows/policy"]) == (1.0, 0.0)
    assert result.tasks["privileged"]["rows"][0] > 0
    judges = ["judge_first", *(f"{target}/judge_last" for target in TARGETS)]
    whose = ("policy_first", "policy_last")
    assert set(result.judged) == {f"{judge}/{episodes}" for judge in judges for episodes in whose}
    text = table({("2e-4", 7): json.loads(json.dumps(asdict(result)))})
    assert all(f"| `{target}`, 2e-4 | 1 |" in text for target in TARGETS)


@pytest.mark.parametrize("target", list(TARGETS))
def test_the_policy_is_credited_by_outcomes_alone_and_a_judge_as_its_target_says(
    target: str,
) -> None:
    paths, arm = {"policy": "a", "reward": "b", "rewriter": ""}, ARMS["2e-4"]
    assert isinstance(STUDY.full, JudgesSettings)
    plays = parse(STUDY.full.document(arm, 1, paths))
    assert (plays.algorithm.resolved.needs_votes, plays.trainer.policy.learning_rate) == (False, 5e-4)  # fmt: skip
    teaches = parse(STUDY.full.judge(arm, 1, paths, TARGETS[target]))
    algorithm = teaches.algorithm.resolved
    assert (teaches.votes, algorithm.use_votes, algorithm.train_reward_model) == (3, False, True)
    assert algorithm.needs_reference == (target == "privileged")
    assert (teaches.trainer.reward.max_rows, teaches.trainer.reward.learning_rate) == (0, 2e-4)


def test_the_table_says_what_training_changed_on_the_same_episodes() -> None:
    results = {}
    for seed in (1, 2, 3):
        result = Result("2e-4", seed)
        result.tasks = {target: {"rows": [10, 0]} for target in TARGETS}
        result.judge = {
            "within/judge_first/policy_last": 0.6,
            "within/pairs/judge_last/policy_last": 0.7 + 0.01 * seed,
        }
        results["2e-4", seed] = asdict(result)
    text = table(results)
    assert "| `pairs`, 2e-4 | 3 | -  | 0.600 +0.120 ± 0.025 |" in text
    assert "5.000 ± 0.000" in text
    assert "nothing is on file" in table({})
