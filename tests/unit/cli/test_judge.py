"""`triforge judge check`: what is measured of the judge, which arms are trained, and the sentence at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Services, Triforge
from tests.unit.cli.test_ab import submitted
from tests.unit.cli.test_train import trained  # noqa: F401  a fixture
from triforge.algorithms.paired import against_first
from triforge.cli.judge import measured, sentence
from triforge.config import parse
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import write_step_records
from triforge.types import Page, RunState, RunStep

GIVEN = (
    "judge",
    "check",
    "--model",
    ".",
    "--reward-model",
    ".",
    "--env",
    "household",
    "--state",
    "kept",
)
MEASURES = {
    "judge/accuracy": 0.8,
    "judge/balanced": 0.7,
    "judge/balanced/low": 0.6,
    "judge/balanced/high": 0.75,
}


def row(label: int | None, votes: list[int], outcome: int, **changes: Any) -> dict[str, Any]:
    columns = {
        "purpose": "train", "group_id": "g1", "trajectory_id": f"t{outcome}", "action": "take mug", "response": "take mug",
        "label": label, "outcome": outcome, "votes": [{"value": vote} for vote in votes],
    }  # fmt: skip
    return columns | changes


ROWS = [
    row(-1, [1, 1, -1], -1), row(1, [1, 1, 0], -1), row(1, [1, 1, 1], 1, action="go table"),
    row(-1, [-1, -1, -1], -1, action="", response="Go fridge"), row(-1, [1, 1, 1], -1, purpose="evaluate"),
]  # fmt: skip


def served(services: Services, folder: Path, metrics: dict[str, float]) -> None:
    """Have every run end with these metrics and rows."""
    ends = {"eval/sampled": 0.5, "eval/sampled_episodes": 16.0}
    steps = Page[RunStep](items=(
        RunStep(run_id="run-1", step=1, at=0.0, policy_version=4, reward_version=0, metrics=metrics | ends),
    ))  # fmt: skip
    services.say("GET /v1/runs", Page[RunState](items=()))
    services.say("GET /v1/runs/run-1/steps", steps)
    write_step_records(ArtifactStore(str(folder)), "rows.parquet", ROWS)
    export = (folder / "rows.parquet").read_bytes()
    services.answers["GET /v1/runs/run-1/export"] = (200, "application/octet-stream", export)


MONTE_CARLO = ("--preset", "rlanything", "--set", "algorithm.overrides.judge_target=monte_carlo")


@pytest.fixture
def judged(trained: Services, tmp_path: Path) -> Services:  # noqa: F811
    served(trained, tmp_path / "store", MEASURES)
    return trained


@pytest.mark.parametrize("options", [MONTE_CARLO, ("--preset", "audited")])
def test_a_judge_is_measured_on_one_step_that_trains_no_judge_and_only_once(
    triforge: Triforge, judged: Services, tmp_path: Path, options: tuple[str, ...]
) -> None:
    code, out, err = triforge(*GIVEN, *options)
    assert (code, err) == (0, "")
    (body,) = submitted(judged)
    config = parse({k: v for k, v in body["config"].items() if k != "models"})
    assert (config.run.steps, config.run.eval_every) == (1, 0)
    assert not config.algorithm.resolved.train_reward_model
    assert config.algorithm.preset == options[1]
    assert "0.600 to 0.750" in out
    assert "--train 20" in out
    found = json.loads((tmp_path / "kept/judge.json").read_text())
    assert found["kinds"] == {"take": [3, 1, 3, 2], "go": [3, 0, 3, 0]}
    page = (tmp_path / "kept/judge.md").read_text()
    assert "| take | 6 | 0.50 | 0.67 (2 of 3) | 0.33 (1 of 3) |" in page
    triforge(*GIVEN, *options)
    assert len(submitted(judged)) == 1
    triforge(*GIVEN, *options, "--set", "reward.votes=5")
    assert len(submitted(judged)) == 2, "another way to ask the judge"


def test_praise_is_counted_where_episodes_fail() -> None:
    rows = [one for one in ROWS if one["purpose"] == "train"]
    found = measured(MEASURES, rows)
    assert (found["episodes"], found["votes"]) == (2, 12)
    means = {name: values[0] for name, values in found["measures"].items()}
    assert means["+1 on steps of failures"] == pytest.approx(4 / 9)
    assert means["+1 on wrong steps of failures"] == pytest.approx(2 / 6)
    assert means["+1 on steps of successes"] == 1.0


def test_all_arms_differ_from_the_first_in_their_votes_alone(
    triforge: Triforge, judged: Services, tmp_path: Path
) -> None:
    code, out, err = triforge(*GIVEN, "--preset", "rlanything", "--train", "3", "--seeds", "2")
    assert (code, err) == (0, "")
    _, *bodies = submitted(judged)
    configs = [parse({k: v for k, v in body["config"].items() if k != "models"}) for body in bodies]
    assert {config.run.steps for config in configs} == {3}
    assert [config.run.seed for config in configs] == [1] * 7 + [2] * 7
    judges = [
        (c.reward.kind, c.reward.accuracy, c.reward.errors, c.algorithm.resolved.train_reward_model)
        for c in configs
    ]
    assert judges[:7] == judges[7:] == [
        ("praise", 1.0, "lot", False), ("votes", 1.0, "lot", True), ("votes", 1.0, "lot", False),
        ("shuffled", 1.0, "lot", False), ("oracle", 1.0, "lot", False), ("oracle", 0.7, "lot", False),
        ("oracle", 0.7, "repeat", False),
    ]  # fmt: skip
    page = (tmp_path / "kept/judge.md").read_text()
    assert json.loads((tmp_path / "kept/judge.json").read_text())["sentence"] in page
    assert "It is not shown that the judge pays" in out


def test_without_labels_nothing_is_planted_and_the_rest_is_named(
    triforge: Triforge, judged: Services, tmp_path: Path
) -> None:
    served(judged, tmp_path / "store", {"judge/outcome": 0.5})
    arms = ("--train", "3", "--seeds", "1", "--preset", "rlanything")
    code, _, err = triforge(*GIVEN, *arms, "--arm", "oracle")
    assert code == 1
    assert "expected some of always, trained, frozen, shuffled" in err
    assert triforge(*GIVEN, *arms, "--arm", "frozen")[0] == 0
    kinds = [
        body["config"]["reward"]["kind"]
        for body in submitted(judged)[1:]
        if "reward" in body["config"]
    ]
    assert kinds == ["praise"]


def test_a_training_without_votes_has_no_judge_to_check(
    triforge: Triforge, judged: Services
) -> None:
    code, _, err = triforge(*GIVEN, "--preset", "grpo")
    assert (code, submitted(judged)) == (1, [])
    assert "expected a judge and a preset that reads its votes" in err


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (0.2, "The judge pays"),
        (-0.2, "The judge costs success"),
        (0.0, "It is not shown that the judge pays"),
    ],
)
def test_one_sentence_says_whether_it_pays_at_which_cost(gain: float, verdict: str) -> None:
    noise = {1: 0.0, 2: 0.02, 3: -0.01, 4: 0.01}
    gains = {"always": 0.0, "trained": gain, "oracle": 0.3}
    results = {
        (arm, seed): {
            "after": {"sampled": {"success": 0.4 + more + (arm != "always") * noise[seed]}},
            "seconds": 10.0 * (1 + (arm == "trained")),
        }
        for arm, more in gains.items()
        for seed in noise
    }
    ends = {
        arm: {seed: results[arm, seed]["after"]["sampled"]["success"] for seed in noise}
        for arm in gains
    }
    text = sentence(results, against_first(ends))
    assert text.startswith(
        f"{verdict}: held-out success {0.405 + gain:.3f} with it (trained), 0.400 with"
    )
    assert "in 2.0 times the time; " in text
    assert "in its place: votes that are always right +0.305 ± 0.021, better" in text
