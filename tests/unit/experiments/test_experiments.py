"""The experiment: every arm goes round once with models of a few thousand parameters; what is reported is what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from demo.settings import ROOT
from experiments import envrl, envrl_report
from experiments.archive import pack, unpack
from experiments.envrl_run import EnvrlRun
from experiments.jobs import Job, finished, read, run_all
from experiments.loop import play
from experiments.plots import curves, draw, drawn
from experiments.record import Models, Result, silent
from experiments.report import Page, arms_of, at_end, difference, write
from experiments.settings import ARMS, BASELINES, QUICK, SEEDS, TUNING_SEEDS, Family, Settings
from experiments.statistics import mean, paired
from experiments.study import ADAPTATION, digest, file_of, files_of
from triforge.config import merge, parse, read_document
from triforge.types import JudgedGroup, TrainRow


@pytest.mark.parametrize("name", ["ladder", "trust"])
def test_an_arm_goes_round(models: Models, name: str) -> None:
    result = play(name, ARMS[name], 7, QUICK, replace(models, strong=models.policy))
    assert [e["step"] for e in result.evaluations] == [0.0, 1.0]
    # Untrained models never win: without trust there is nothing to learn from, otherwise there are the votes.
    assert result.steps[0].get("policy/updates", 0.0) == (0.0 if name == "trust" else 4.0)
    assert set(result.evaluations[0]) > {"sampled", "greedy", "sampled/easy", "greedy/hard"}
    replaced = result.tasks["proposals"].get("accepted", 0)
    assert replaced == (QUICK.groups if name == "ladder" else 0)
    solved = result.tasks.get("solved", {"accepted": {}})["accepted"]
    assert list(solved.values()) == [[0, QUICK.rollouts]] * replaced
    assert json.loads(json.dumps(asdict(result)))["arm"] == name


def test_the_demo_trains_the_reward_model_on_every_vote_with_an_advantage() -> None:
    models = {role: role for role in ("policy", "reward", "rewriter")}
    paths = {"models": {role: {"path": path} for role, path in models.items()}}
    demo = read_document(ROOT / "configs" / "demo.toml")
    assert parse(merge(demo, paths)).trainer.reward.max_rows == 0
    arm = Settings().document(ARMS["fixed"], 1, models)
    assert parse(arm).trainer.reward.max_rows == 0


def test_arms_differ_from_their_baseline_in_what_their_title_says_only() -> None:
    models = {"policy": "a", "reward": "j", "rewriter": "r"}
    documents = {name: Settings().document(arm, 1, models) for name, arm in ARMS.items()}
    parts: dict[Family, str] = {"tasks": "adaptation", "votes": "algorithm"}
    for family, part in parts.items():
        baseline = BASELINES[family]
        assert arms_of(family)[0] == baseline
        for name in arms_of(family)[1:]:
            changed = {k for k in documents[name] if documents[name][k] != documents[baseline][k]}
            assert changed == {part}, name
    assert not set(SEEDS) & set(TUNING_SEEDS)
    assert len(SEEDS) >= 5


def test_results_of_other_settings_are_never_mixed_in() -> None:
    arm = ARMS["trust"]
    assert digest(Settings(), arm) == digest(Settings(), replace(arm))
    assert digest(Settings(), arm) not in (digest(QUICK, arm), digest(Settings(), ARMS["fixed"]))


def test_runs_of_the_recorded_loop_and_of_the_products_are_never_in_one_table(
    tmp_path: Path,
) -> None:
    jobs, asked = [Job("trust", 1), Job("fixed", 1)], (tmp_path, ADAPTATION, QUICK)
    old = {job: file_of(*asked, job, recorded=True) for job in jobs}
    new = {job: file_of(*asked, job) for job in jobs}
    assert not set(old.values()) & set(new.values())
    old[jobs[0]].parent.mkdir()
    old[jobs[0]].touch()  # one of two is on record
    assert files_of(*asked, jobs, finished=True) == old
    assert files_of(*asked, jobs, finished=False) == new
    new[jobs[1]].touch()
    assert files_of(*asked, jobs, finished=True) == new
    old[jobs[1]].touch()
    assert files_of(*asked, jobs, finished=False) == old
    new[jobs[0]].touch()
    assert files_of(*asked, jobs, finished=True) == new


# ---- auxiliary objectives ----


def test_their_arms_differ_in_estimator_and_objectives_only() -> None:
    models = {"policy": "a", "reward": "j", "rewriter": "r"}
    documents = {n: envrl.STUDY.full.document(arm, 1, models) for n, arm in envrl.ARMS.items()}
    for preset in envrl.ESTIMATORS:
        alone = documents[preset]
        assert alone["algorithm"] == {"preset": preset}
        for name in (f"{preset}_envrl", f"{preset}_placebo"):
            changed = {k for k in alone if documents[name][k] != alone[k]}
            assert changed == {"methods"}
            assert documents[name]["trainer"]["policy"] == alone["trainer"]["policy"]


def test_a_run_with_placebo_goes_round(models: Models) -> None:
    arm = envrl.ARMS["grpo_placebo"]
    result = play("grpo_placebo", arm, 7, envrl.STUDY.quick, models, make=EnvrlRun)
    assert [e["step"] for e in result.evaluations] == [0.0, 1.0]
    # An untrained model says nothing admissible: there is nothing to predict, and nothing to learn from.
    assert "sp/nll" not in result.evaluations[0]
    assert result.steps[0]["aux/drawn"] == 0.0
    assert json.loads(json.dumps(asdict(result)))["arm"] == "grpo_placebo"


def test_what_a_policy_knows_is_measured_whatever_it_trains_on(models: Models) -> None:
    objectives: tuple[Literal["sp", "id"], ...] = ("sp", "id")

    class Given(EnvrlRun):
        def _items(self, groups: Sequence[JudgedGroup]) -> list[TrainRow]:
            return [
                TrainRow(
                    key=f"item/{name}", ids=(1, 2, 3), logprobs=(0.0,) * 3, advantages=(0.0,) * 3,
                    weights=(0.0, 0.0, 1.0), versions=(-1,) * 3, task_id="t", objective=name,
                )
                for name in objectives
            ]  # fmt: skip

    found = {}
    for name in ("grpo", "grpo_envrl"):
        arm = envrl.ARMS[name]
        run = play(name, arm, 7, envrl.STUDY.quick, models, tell=silent, make=Given)
        found[name] = run.evaluations[0]
        assert found[name]["sp/nll"] > 0
        assert found[name]["id/nll"] > 0
    assert found["grpo"] == found["grpo_envrl"]


def test_their_report_says_what_the_numbers_say(tmp_path: Path) -> None:
    results = {}
    for name in envrl.ARMS:
        for seed in (1, 2, 3):
            end = 0.5 + 0.01 * seed + (0.1 if name == "gigpo_envrl" else 0.0)
            knows = {"sp/nll": 1.5, "id/nll": 0.5, "id/exact": 0.25}
            result = Result(name, seed)
            result.evaluations = [
                {"step": 0.0, "sampled": 0.2, "greedy": 0.2, **knows},
                {"step": 4.0, "sampled": end, "greedy": end, **knows},
            ]
            result.steps = [{"success": 0.3}, {"success": 0.4, "policy/aux/grad_ratio": 0.7}]
            results[name, seed] = asdict(result)
    pictures = envrl_report.draw(results, tmp_path)
    settings = envrl.STUDY.full
    assert isinstance(settings, envrl.EnvrlSettings)
    text = envrl_report.write(results, settings, page(pictures))
    assert "- `gigpo_envrl` is above `gigpo`, sampled: +0.100 ± 0.000." in text
    assert "- `gigpo_envrl` is above `gigpo_placebo`, greedy: +0.100 ± 0.000." in text
    assert "- No difference shown: `grpo_envrl` from `grpo`, sampled (+0.000 ± 0.000)" in text
    assert "0.700 ± 0.000" in text
    every_picture_is_shown(tmp_path, text)


def page(pictures: Mapping[str, str]) -> Page:
    return Page(seeds=(1, 2, 3), command="make", minutes=5.0, machine="2 cores", pictures=pictures)


def every_picture_is_shown(folder: Path, text: str) -> None:
    files = list(folder.iterdir())
    assert sum(f'src="{file.name}"' in text for file in files) == len(files) / 2  # light
    assert sum(f'srcset="{file.name}"' in text for file in files) == len(files) / 2  # dark
    assert all(file.stat().st_size < 60_000 for file in files)


def test_pictures_are_the_same_for_the_same_results(tmp_path: Path) -> None:
    for name in ("one", "again"):
        assert drawn(tmp_path / name, {"title": ("p", curves(_results(), ["trust"]))}) == {
            "title": "p.svg"
        }
    for file in ("p.svg", "p-dark.svg"):
        assert len({(tmp_path / name / file).read_bytes() for name in ("one", "again")}) == 1


# ---- statistics ----


def test_intervals_are_students_t_over_seeds() -> None:
    found = mean([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.value == pytest.approx(0.3)
    assert found.half == pytest.approx(2.776 * math.sqrt(0.025 / 5))
    assert found.text() == "0.300 ± 0.196"
    assert mean([0.2]).text(sign=True) == "+0.200 ± ?"
    with pytest.raises(ValueError, match="no values"):
        mean([])


def test_differences_are_paired_by_seed() -> None:
    found = paired({1: 0.5, 2: 0.9, 3: 0.1}, {1: 0.4, 2: 0.8, 9: 0.0})
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert paired({1: 0.5}, {2: 0.5}) is None


# ---- jobs ----

_RUN = """
import sys, json
arm, seed = sys.argv[1:]
print(json.dumps({"steps": {"success": 0.5}}))
if arm == "bad":
    sys.exit(3)
print(json.dumps({"evaluations": {"step": 0.0}}))
print(json.dumps({"arm": arm, "seed": int(seed)}))
"""


def test_finished_runs_are_kept_and_only_the_others_run_again(tmp_path: Path) -> None:
    messages = list[str]()
    jobs = [Job("old", 1), Job("torn", 2), Job("bad", 3), Job("new", 4)]
    files = {job: tmp_path / "study" / f"{job.arm}-{job.seed}.jsonl" for job in jobs}
    files[jobs[0]].parent.mkdir()
    files[jobs[0]].write_text('{"arm": "old", "seconds": 7.0}\n')
    files[jobs[1]].with_suffix(".part").write_text('{"steps": {"succ')  # its process was killed
    failed = run_all(
        files, lambda job: ["-c", _RUN, job.arm, str(job.seed)], processes=2, tell=messages.append
    )
    assert failed == [Job("bad", 3)]
    found = finished(files)
    assert sorted(found) == [("new", 4), ("old", 1), ("torn", 2)]
    assert found["old", 1]["seconds"] == 7.0
    assert found["new", 4]["steps"] == [{"success": 0.5}]
    assert found["new", 4]["evaluations"] == [{"step": 0.0}]
    assert "4 runs, 1 of them on file" in messages[0]
    assert any("bad, seed 3: failed" in line for line in messages)


def test_runs_on_record_are_as_good_as_files(tmp_path: Path) -> None:
    here, there, record = tmp_path / "a" / "study", tmp_path / "b" / "study", tmp_path / "runs"
    here.mkdir(parents=True)
    for seed in (1, 2):
        lines = [{"evaluations": {"sampled": 0.25}}, {"steps": {"success": 1 / 3, "seconds/play": 1.5}},
                 {"arm": "x", "seed": seed, "seconds": 7.0}]  # fmt: skip
        (here / f"x-{seed}-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pack(here.iterdir(), record)
    assert sorted(p.name for p in (record / "study").iterdir()) == ["x-1-0.jsonl", "x-2-0.jsonl"]
    unpack(record, there)
    assert read(there / "x-1-0.jsonl") == {
        "arm": "x", "seed": 1, "seconds": 7.0,
        "steps": [{"success": 0.33333}], "evaluations": [{"sampled": 0.25}],
    }  # fmt: skip
    before = (record / "study" / "x-1-0.jsonl").read_text()
    (here / "y-1-0.jsonl").write_text(json.dumps({"arm": "y", "seed": 1}) + "\n")
    (here / "x-1-0.jsonl").write_text(json.dumps({"arm": "x", "seed": 1, "seconds": 8.0}) + "\n")
    pack(here.iterdir(), record)  # what is on record stays as it is
    assert (record / "study" / "x-1-0.jsonl").read_text() == before
    assert (record / "study" / "y-1-0.jsonl").is_file()


# ---- the report ----


def _results() -> dict[tuple[str, int], dict[str, Any]]:
    """Every arm on three seeds: `trust` is 0.1 better than the baseline on each, all others equal it."""
    found = {}
    for name in ARMS:
        for seed in (1, 2, 3):
            result = Result(name, seed)
            end = 0.5 + 0.01 * seed + (0.1 if name == "trust" else 0.0)
            modes = {
                f"{mode}{kind}": end
                for mode in ("sampled", "greedy")
                for kind in ("", "/easy", "/hard")
            }
            result.evaluations = [
                {"step": 0.0, **dict.fromkeys(modes, 0.2)},
                {"step": 4.0, **modes},
            ]
            result.steps = [{"success": 0.3}, {"success": 0.4}]
            result.late = {"mu_within": 1.3, "mu_within/low": 1.2}
            result.tasks = {"proposals": {"accepted": 2}, "null_control": {"rejected": 3}}
            found[name, seed] = asdict(result)
    return found


def test_the_report_says_what_the_numbers_say(tmp_path: Path) -> None:
    results = _results()
    better = difference(results, "trust", "outcome", at_end("greedy"))
    assert better is not None
    assert better.text(sign=True) == "+0.100 ± 0.000"
    pictures = draw(results, tmp_path)
    text = write(results, Settings(), page(pictures))
    assert "- `trust` is above `outcome`, sampled: +0.100 ± 0.000." in text
    assert "- No difference shown: `llm_rewrite` from `fixed`, sampled (+0.000 ± 0.000)" in text
    assert "0 of 9" in text  # null controls over seeds
    assert "3 of 3" in text  # mu surely above 1
    assert "other seeds, which are not reported: 901." in text
    every_picture_is_shown(tmp_path, text)
