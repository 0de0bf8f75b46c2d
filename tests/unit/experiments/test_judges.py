"""The experiment on the judge's targets: its runs, and what its table says."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from experiments.judges import ARMS, STUDY
from experiments.judges_report import table
from experiments.loop import play
from experiments.record import Models, Result
from triforge.config import parse


def test_a_run_trains_the_judge_alone_and_measures_it_on_old_and_new_episodes(
    models: Models,
) -> None:
    name = "privileged@2e-4"
    result = play(name, ARMS[name], 7, STUDY.quick, models)
    # An untrained policy never wins: there is nothing for it to learn, and a judge that is told the solution learns all the same.
    assert (result.steps[0]["all_same"], result.steps[0]["rows/policy"]) == (1.0, 0.0)
    assert result.steps[0]["rows/reward"] > 0
    assert set(result.judged) == {
        f"judge_{weights}/policy_{whose}" for weights in ("first", "last") for whose in ("first", "last")
    }  # fmt: skip
    assert f"| `{name}` | 1 |" in table({(name, 7): json.loads(json.dumps(asdict(result)))})


@pytest.mark.parametrize("name", list(ARMS))
def test_the_policy_of_each_arm_is_credited_by_outcomes_alone(name: str) -> None:
    document = STUDY.full.document(ARMS[name], 1, {"policy": "a", "reward": "b", "rewriter": ""})
    config = parse(document)
    algorithm = config.algorithm.resolved
    assert (config.votes, algorithm.use_votes, algorithm.train_reward_model) == (3, False, True)
    assert algorithm.needs_reference == name.startswith("privileged")
    assert (config.trainer.policy.learning_rate, config.trainer.reward.max_rows) == (5e-4, 0)


def test_the_table_says_what_training_changed_on_the_same_episodes() -> None:
    results = {}
    for seed in (1, 2, 3):
        result = Result("pairs@2e-4", seed)
        result.steps = [{"rows/reward": 10.0}, {}]
        result.judge = {
            "within/judge_first/policy_last": 0.6,
            "within/judge_last/policy_last": 0.7 + 0.01 * seed,
        }
        results["pairs@2e-4", seed] = asdict(result)
    text = table(results)
    assert "| `pairs@2e-4` | 3 | -  | 0.600 +0.120 ± 0.025 |" in text
    assert "5.000 ± 0.000" in text
    assert "nothing is on file" in table({})
