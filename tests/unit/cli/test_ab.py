"""`triforge ab`: which runs it asks for, what it keeps of them, and what it says of the arms."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from tests.unit.cli.conftest import Services, Triforge, run_state
from tests.unit.cli.test_train import trained  # noqa: F401  a fixture
from triforge.algorithms.paired import t_quantile
from triforge.cli.model_folders import tiny_folder
from triforge.environments.registry import family
from triforge.types import Page, RunState

pytestmark = pytest.mark.usefixtures("trained")
TWO = ("ab", "--arm", "base", "--arm", "hot:trainer.policy.learning_rate=0.5 run.steps=3")
GIVEN = ("--model", ".", "--env", "household", "--set", "run.steps=2", "--state", "kept")


@pytest.fixture(autouse=True)
def _no_runs(services: Services) -> None:
    services.say("GET /v1/runs", Page[RunState](items=()))


def submitted(services: Services) -> list[dict[str, Any]]:
    return [body for what, body in services.asked if what == "POST /v1/runs"]


def test_every_arm_is_trained_on_every_seed_and_once(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    code, out, err = triforge(*TWO, *GIVEN, "--seeds", "2")
    assert (code, err) == (0, "")
    configs = [body["config"] for body in submitted(services)]
    runs = [(config["run"]["seed"], config["run"]["steps"]) for config in configs]
    assert runs == [(1, 2), (1, 3), (2, 2), (2, 3)]
    learners = [config.get("trainer", {}).get("policy", {}) for config in configs]
    rates = [learner.get("learning_rate") for learner in learners]
    assert [rate == 0.5 for rate in rates] == [False, True, False, True]
    pools = [body["generate"]["seed"] for what, body in services.asked if what == "POST /v1/pools"]
    assert pools == [1, 1, 2, 2]
    assert "4 of 4 runs are left" in out
    assert "1 of 4 runs are left, about" in out
    assert "undecided" in (tmp_path / "kept/ab.md").read_text()
    code, out, err = triforge(*TWO, *GIVEN, "--seeds", "2")
    assert (code, err, len(submitted(services))) == (0, "", 4)
    triforge(*TWO, "--arm", "none", *GIVEN, "--seeds", "2")
    assert len(submitted(services)) == 6  # a new arm is played, the old ones are not


def test_arms_share_the_tiny_model_of_small_tasks(
    triforge: Triforge, services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = family("household").beginner
    made = tiny_folder("household", small.generate, small.options)
    build_tiny_model(made, ["put"], shape=TinyShape(hidden=16, layers=1, heads=1))
    code, _, err = triforge(*TWO, "--model", "tiny", *GIVEN[2:], "--seeds", "1")
    assert (code, err) == (0, "")
    paths = [body["config"]["models"]["policy"]["path"] for body in submitted(services)]
    assert paths == [str(made)] * 2
    assert [*made.parent.iterdir()] == [made]  # no other was made for the checks


def test_a_run_that_did_not_finish_is_gone_on_with(triforge: Triforge, services: Services) -> None:
    services.say("GET /v1/runs/run-1", run_state("failed", "the disk is full"))
    code, _, err = triforge(*TWO, *GIVEN)
    assert (code, len(submitted(services))) == (1, 1)
    assert "the disk is full" in err
    begun = submitted(services)[0]["name"]
    services.say("GET /v1/runs", Page[RunState](items=(run_state("failed", name=begun),)))
    services.say("POST /v1/runs/run-1/resume", run_state("queued"))
    triforge(*TWO, *GIVEN)
    assert ("POST /v1/runs/run-1/resume", None) in services.asked
    assert len(submitted(services)) == 1


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        (("--arm", "base"), "two at least"),
        (("--arm", "base", "--arm", "base:run.steps=1"), "no other arm has"),
        (("--arm", "base", "--arm", "b:run.seed=4"), "--seeds sets"),
        (("--arm", "base", "--arm", "b:algorithm.overrides.no_such=4"), "no_such"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(
    triforge: Triforge, services: Services, tmp_path: Path, arms: tuple[str, ...], named: str
) -> None:
    code, _, err = triforge("ab", *arms, *GIVEN)
    assert (code, submitted(services)) == (1, [])
    assert named in err
    assert not (tmp_path / "kept/ab.json").exists()  # the arm may be mended


def test_an_arm_with_other_options_than_its_runs_on_file_is_refused(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    (tmp_path / "base.toml").write_text("[run]\ngroups_per_step = 2\n")
    given = (*GIVEN, "--config", "base.toml", "--seeds", "1")
    assert triforge(*TWO, *given)[0] == 0
    code, _, err = triforge(*TWO, *given, "--steps", "5")
    assert code == 1
    assert "steps from None to 5" in err
    (tmp_path / "base.toml").write_text("[run]\ngroups_per_step = 3\n")
    code, _, err = triforge(*TWO, *given)
    assert code == 1
    assert "config from" in err
    assert len(submitted(services)) == 2


def test_the_page_tells_arms_apart_seed_by_seed(triforge: Triforge, tmp_path: Path) -> None:
    assert triforge(*TWO, *GIVEN, "--seeds", "1")[0] == 0
    file = tmp_path / "kept/ab.json"
    record = json.loads(file.read_text())
    base = [0.2, 0.5, 0.4, 0.3, 0.6, 0.1]
    record["runs"] = [
        {
            "arm": arm, "seed": seed, "run": f"run-{arm}{seed}", "seconds": 1.0,
            "before": {"sampled": {"success": 0.1}},
            "after": {"sampled": {"success": success + (arm == "hot") * (0.2 + 0.01 * seed)}},
        }
        for seed, success in enumerate(base, 1)
        for arm in ("base", "hot")
    ]  # fmt: skip
    file.write_text(json.dumps(record))
    code, out, _ = triforge(*TWO, *GIVEN, "--seeds", "6")
    page = (tmp_path / "kept/ab.md").read_text()
    assert code == 0
    assert "are left" not in out
    assert "| hot | +0.235 ± 0.020 | 6.8e-07 | better |" in page
    assert "| hot, sampled | 0.100 ± 0.000 | 0.585 ± " in page
    assert re.search(r"\| hot, sampled .* \| 1 \|", page), "seconds a run"
    assert "| 6 | 0.100 run-base6 | 0.360 run-hot6 |" in page


def test_few_seeds_have_no_interval_and_a_number_that_would_tell(
    triforge: Triforge, tmp_path: Path
) -> None:
    assert triforge(*TWO, *GIVEN, "--seeds", "1")[0] == 0
    file = tmp_path / "kept/ab.json"
    record = json.loads(file.read_text())
    gains, rates = {1: 0.1, 2: 0.2}, {"base": 0.00052, "hot": 0.5}
    record["runs"] = [
        {
            "arm": arm, "seed": seed, "run": f"run-{arm}{seed}", "seconds": 1.0, "before": {},
            "after": {"sampled": {"success": 0.1 + (arm == "hot") * gain}},
            "config": {"trainer": {"policy": {"learning_rate": rates[arm]}}},
        }
        for seed, gain in gains.items()
        for arm in rates
    ]  # fmt: skip
    file.write_text(json.dumps(record))
    code, out, _ = triforge(*TWO, *GIVEN, "--seeds", "2")
    page = (tmp_path / "kept/ab.md").read_text()
    assert code == 0
    assert "| trainer.policy.learning_rate | 0.00052 | 0.5 |" in page
    assert "| hot | +0.150 ± 0.635 |" in page
    assert "+0.150" in out
    assert "±" not in out
    needed = next(n for n in range(3, 99) if t_quantile(n - 1) * 0.1 / math.sqrt(2 * n) < 0.15)
    assert f"hot: the same command with --seeds {needed} would tell" in " ".join(out.split())
    assert f"--seeds {needed} would tell" in page
