"""Does the test of the stack see what it is there to see? The invariants themselves are tested with chaos."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from chaos.facts import files_of, rows_of
from scripts.compose_test.verdicts import judge, totals
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import SCHEMA, write_step_records
from triforge.store.tables import Base, PlanRow, PoolRow, RunRow, StepRow, TaskRow, WeightsRow

RUN = "r"
UPDATES = 6  # of a step


def record(step: int, rollout: int) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    return empty | {
        "run_id": RUN, "step": step, "group_id": f"{RUN}-{step:05d}-train-0000", "trajectory_id": f"{step}/{rollout}",
        "step_index": 0, "policy_versions": [step, step], "outcome": 1, "measured": 0, "reason": "",
        "votes": [{"versions": [step], "reason": ""}],
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the artifact store after a run of two steps with one group of two rollouts."""
    for step in (1, 2):
        write_step_records(
            ArtifactStore(str(tmp_path)), f"runs/{RUN}/steps/{step:05d}.parquet", [record(step, i) for i in (0, 1)]
        )  # fmt: skip
    for role in ("policy", "reward"):
        folder = tmp_path / "weights" / RUN / role / "v000003"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(role)
        entry = {"sha256": hashlib.sha256(role.encode()).hexdigest()}
        manifest = {"files": {"config.json": entry}, "step": 2}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        checkpoint = tmp_path / "checkpoints" / RUN / role / "v000003-5f3a0c1e"
        checkpoint.mkdir(parents=True)
        counters = {"updates": UPDATES * 2 - 1, "skipped": 1}
        (checkpoint / "state.json").write_text(json.dumps({"counters": counters}))
    return tmp_path


def facts(store: Path) -> dict[str, Any]:
    """As `facts.main` collects them, of a database with what the run leaves there."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        learner = {"epochs": 3, "updates_per_step": 4}
        config = {
            "run": {"steps": 2, "groups_per_step": 1}, "env_adapter": {"rollouts": 2}, "reward": {"votes": 1},
            "adaptation": {"pairs_on_top": True}, "trainer": {"policy": learner, "reward": learner},
        }  # fmt: skip
        run = RunRow(
            id=RUN, name=RUN, pool_id="p", status="finished", step=2, policy_version=3, reward_version=3,
            config=config, state={}, reason="", created_at=0.0, updated_at=0.0,
        )  # fmt: skip
        session.add(run)
        session.add(
            PoolRow(id="p", name="p", family="f", options={}, request_digest="", created_at=0.0)
        )
        session.add(TaskRow(id="t", pool_id="p", slot="t", version=1, split="train", state="active", position=0, instruction="", params={}, created_at=0.0))  # fmt: skip
        for step in (0, 1, 2):
            metrics = {"steps/trained": 2.0, "rows/policy": 2.0, "rows/reward": 2.0} if step else {}
            session.add(StepRow(run_id=RUN, step=step, policy_version=step + 1, reward_version=step + 1, metrics=metrics, artifacts={}, at=0.0))  # fmt: skip
            for role in ("policy", "reward"):
                manifest = store / "weights" / RUN / role / f"v{step + 1:06d}" / "manifest.json"
                digest = hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""  # fmt: skip
                session.add(WeightsRow(run_id=RUN, role=role, version=step + 1, uri="", digest=digest, at=0.0))  # fmt: skip
            if step:
                session.add(PlanRow(run_id=RUN, step=step, kind="train", pool_id="p", cursor=0, groups=[{}]))  # fmt: skip
        session.flush()
        found = (
            rows_of(session, run) | files_of(store, RUN) | {"keys": {}, "jobs": 0, "outcomes": 0}
        )
    printed: dict[str, Any] = json.loads(
        json.dumps({"runs": [found], "jobs": 0, "unacknowledged": []})
    )
    return printed


def wrong(found: dict[str, Any]) -> dict[str, list[str]]:
    return {name.split(":")[0]: faults for name, faults in judge(found).items() if faults}


def test_what_an_undisturbed_run_leaves_passes_every_check(store: Path) -> None:
    found = facts(store)
    assert wrong(found) == {}
    counted = totals(found)
    assert (counted["runs"], counted["groups"], counted["trained"]) == (1, 2, 4)


def test_weights_that_are_not_what_their_manifest_says_are_found(store: Path) -> None:
    (store / "weights" / RUN / "policy" / "v000003" / "config.json").write_text("torn")
    assert "whole" in wrong(facts(store))


def test_an_job_that_is_left_in_a_queue_is_found(store: Path) -> None:
    assert wrong(facts(store) | {"jobs": 1}) == {"emptied": ["1 jobs"]}


def delivery(**changes: Any) -> dict[str, Any]:
    return {"queue": "judge", "run_id": RUN, "group_id": "g", "job": "g/1", "due": "", "at": 5.0, "state": "settled"} | changes  # fmt: skip


def test_a_delivery_that_died_with_its_worker_is_counted_and_an_unexplained_one_is_found(
    store: Path,
) -> None:
    found = facts(store)
    died = found | {"unacknowledged": [delivery()]}
    assert not any(judge(died, quiet_since=10.0).values())
    assert totals(died)["not acknowledged: judge, settled"] == 1
    for left in (delivery(at=11.0), delivery(state="open"), delivery(state="put off")):
        wrong_ones = {n for n, faults in judge(found | {"unacknowledged": [left]}, quiet_since=10.0).items() if faults}  # fmt: skip
        assert {name.split(":")[0] for name in wrong_ones} == {"returned"}
