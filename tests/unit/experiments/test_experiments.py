"""Runs and their files: finished runs are not played again, records are found, statistics and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.comparison import trend
from experiments.jobs import Job, finished, read, run_all
from experiments.outgrown import OUTGROWN
from experiments.plots import curves, drawn
from experiments.study import RECORD, Study, file_of, files_of, record_of
from experiments.table1 import STUDY as TABLE1
from experiments.votes import STUDY as VOTES
from triforge.algorithms.paired import t_tail


@pytest.mark.parametrize(("study", "count"), [(TABLE1, 50), (OUTGROWN, 33), (VOTES, 60)])
def test_runs_on_record_are_found_by_settings_arm_and_seed(study: Study, count: int) -> None:
    found = set[Path]()
    for path in (RECORD / study.name).iterdir():
        arm, seed, _ = path.name.rsplit("-", 2)
        if arm in study.arms:
            found.add(record_of(study, study.full, Job(arm, int(seed))))
    there = [path for path in found if path.is_file()]
    assert len(there) >= count
    assert {"success", "rows/policy"} <= read(there[0])["steps"][-1].keys()


def test_runs_of_the_recorded_loop_and_of_the_products_are_never_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.study.RECORD", tmp_path / "record")
    jobs, asked = [Job("O", 1), Job("P", 1)], (tmp_path, TABLE1, TABLE1.quick)
    old = {job: record_of(TABLE1, TABLE1.quick, job) for job in jobs}
    new = {job: file_of(*asked, job) for job in jobs}
    for path in (*old.values(), *new.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
    old[jobs[0]].touch()  # one of two is on record
    assert files_of(*asked, jobs, finished=True) == old
    assert files_of(*asked, jobs, finished=False) == new
    new[jobs[1]].touch()
    assert files_of(*asked, jobs, finished=True) == new
    old[jobs[1]].touch()
    assert files_of(*asked, jobs, finished=False) == old
    new[jobs[0]].touch()
    assert files_of(*asked, jobs, finished=True) == new


def test_pictures_are_the_same_for_the_same_results(tmp_path: Path) -> None:
    results = {("O", seed): {"steps": [{"success": 0.3}, {"success": 0.4}]} for seed in (1, 2)}
    for name in ("one", "again"):
        assert drawn(tmp_path / name, {"title": ("p", curves(results, ["O"]))}) == {
            "title": "p.svg"
        }
    for file in ("p.svg", "p-dark.svg"):
        assert len({(tmp_path / name / file).read_bytes() for name in ("one", "again")}) == 1


# ---- statistics ----


def test_the_trend_is_the_mean_slope_of_the_seeds() -> None:
    # slopes over 0, 1, 2, 3: weights -1.5, -.5, .5, 1.5 over 5
    arms = [{1: 0.1, 2: 0.3}, {1: 0.2, 2: 0.2}, {1: 0.3, 2: 0.4}, {1: 0.4, 2: 0.5}]
    found = trend(arms)
    assert found is not None
    # seed 1: .1; seed 2: (1.5 * .2 + .5 * .2) / 5 = .08; their difference is .02, so t = .09 / .01
    assert found.mean.value == pytest.approx(0.09)
    assert found.t == pytest.approx(9.0)
    assert found.p == pytest.approx(t_tail(9.0, 1))
    falling = trend(arms[::-1])
    assert falling is not None
    assert falling.p == pytest.approx(1 - found.p)


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
