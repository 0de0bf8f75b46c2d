"""The lasting data of runs, in the shape of `chaos.evidence.Evidence`: from the database, the artifact store and the broker.

Nothing is read from logs, and nothing through the code that wrote it, but for the tables' definitions. As a program
(`python - < facts.py` in the trainer's container of compose-test) it prints a line of JSON for each run and one for the rest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import redis
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from triforge.broker import ADAPT_QUEUE, JUDGE_QUEUE, QUEUES, group_judgement_id, outcome_job
from triforge.store.tables import (
    Base,
    MeasurementRow,
    PlanRow,
    ProposalRow,
    RunRow,
    StepRow,
    TaskRow,
    WeightsRow,
)

COLUMNS = (
    "run_id", "step", "group_id", "trajectory_id", "step_index", "policy_versions", "outcome", "outcome_error", "score",
    "successes", "measured", "weight", "reason", "votes",
)  # fmt: skip
TASK, PROPOSAL = ("id", "slot", "version", "split", "position"), ("slot",)


def main() -> None:
    root = Path(os.environ["TRIFORGE_ARTIFACTS_URL"])
    broker = redis.Redis.from_url(os.environ["TRIFORGE_REDIS_URL"], decode_responses=True)
    with Session(create_engine(os.environ["TRIFORGE_DATABASE_URL"])) as session:
        runs = session.scalars(select(RunRow).order_by(RunRow.created_at)).all()
        jobs = [str(text) for queue in QUEUES for text in broker.lrange(queue, 0, -1)]
        taken = deliveries(broker)
        outcomes = broker.smembers("tf:outcomes")  # of what adaptation has not dealt with
        for run in runs:  # one at a time: the trainer's memory is small
            found = rows_of(session, run) | files_of(root, run.id)
            found["outcomes"] = sum(run.id in group for group in outcomes)
            keys = list(broker.scan_iter(match=f"*{run.id}*", count=1000))
            found["keys"] = {key: broker.ttl(key) for key in keys}
            found["jobs"] = sum(job_of(text)["run_id"] == run.id for text in jobs)
            sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.write(json.dumps({"jobs": len(jobs), "unacknowledged": taken}) + "\n")


def job_of(message: str) -> dict[str, str]:
    """Return the job of a message in a queue: its queue, run, group, its own name, by which it is leased, and when it is due."""
    document = json.loads(message)
    arguments, *_ = json.loads(base64.b64decode(document["body"]))
    job: dict[str, Any] = json.loads(arguments[0])
    queue = str(document["properties"]["delivery_info"]["routing_key"])
    group, trajectory = str(job["group_id"]), job.get("trajectory_id")
    name = outcome_job(group) if queue == ADAPT_QUEUE else group
    if queue == JUDGE_QUEUE:
        name = str(trajectory or group_judgement_id(group))
    due = str((document.get("headers") or {}).get("eta") or "")
    return {"queue": queue, "run_id": str(job["run_id"]), "group_id": group, "job": name, "due": due}  # fmt: skip


def deliveries(broker: Any) -> list[dict[str, Any]]:
    """Return what workers have taken and not acknowledged: which job, when (seconds since 1970), and how it stands.

    The broker keeps a delivery for an hour after its worker has died or lost its connection; then it comes again.
    `dealt with`, `settled`, `ended`, `judged`: the work is done, and the next worker drops it. `held`: a worker has it. `put off`: a worker keeps it until it is due. `open`: it is still to be done.
    """
    found = []
    for tag, at in broker.zrange("unacked_index", 0, -1, withscores=True):
        kept = broker.hget("unacked", tag)
        if kept is not None:  # else acknowledged meanwhile
            job = job_of(json.dumps(json.loads(kept)[0]))
            found.append({**job, "at": at, "state": state_of(broker, job)})
    return found


def state_of(broker: Any, job: Mapping[str, str]) -> str:
    group, name = job["group_id"], job["job"]
    if broker.exists(f"tf:lease:{name}"):
        return "held"
    if job["due"] and datetime.fromisoformat(job["due"]) > datetime.now(UTC):
        return "put off"
    if job["queue"] == ADAPT_QUEUE:
        return "open" if broker.sismember("tf:outcomes", group) else "dealt with"
    if broker.exists(f"tf:committed:{group}"):
        return "settled"
    if broker.exists(f"tf:ended:{job['run_id']}"):
        return "ended"
    return "judged" if broker.exists(f"tf:votes:{name}") else "open"


def rows_of(session: Session, run: RunRow) -> dict[str, Any]:
    steps = select(StepRow).where(StepRow.run_id == run.id).order_by(StepRow.step)
    plans = select(PlanRow).where(PlanRow.run_id == run.id, PlanRow.kind == "train").order_by(PlanRow.step)  # fmt: skip
    weights = select(WeightsRow).where(WeightsRow.run_id == run.id).order_by(WeightsRow.role, WeightsRow.version)  # fmt: skip
    counted = select(MeasurementRow).where(MeasurementRow.run_id == run.id)
    tasks = select(TaskRow).where(TaskRow.pool_id == run.pool_id)
    proposals = select(ProposalRow).where(ProposalRow.pool_id == run.pool_id)
    return {
        "run": row(run),
        "steps": [row(found) for found in session.scalars(steps)],
        "plans": [row(found) for found in session.scalars(plans)],
        "weights": [row(found) for found in session.scalars(weights)],
        "measurements": [row(found) for found in session.scalars(counted)],
        "tasks": [of(row(found), TASK) for found in session.scalars(tasks)],
        "proposals": [of(row(found), PROPOSAL) for found in session.scalars(proposals)],
    }


def row(found: Base) -> dict[str, Any]:
    return {column.name: getattr(found, column.name) for column in found.__table__.columns}


def of(found: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return some columns of a row, and its state."""
    return {name: found[name] for name in columns} | {"standing": found["state"]}


def files_of(root: Path, run: str) -> dict[str, Any]:
    """Return what the artifact store holds of a run."""
    records = []
    for path in sorted((root / "runs" / run / "steps").glob("*.parquet")):
        for record in pq.read_table(path, columns=list(COLUMNS)).to_pylist():
            votes = [{"versions": v["versions"], "reason": v["reason"]} for v in record["votes"]]
            records.append({**record, "votes": votes, "file_step": int(path.stem)})
    return {
        "records": records,
        "folders": [folder(path) for path in sorted((root / "weights" / run).glob("*/v*"))],
        "batches": sorted(path.name for path in (root / "runs" / run / "batches").glob("*")),
    }


def folder(path: Path) -> dict[str, Any]:
    """One weight version: what its manifest says, and what is wrong with its files."""
    about = {"role": path.parent.name, "version": int(path.name.removeprefix("v"))}
    manifest = path / "manifest.json"
    if not manifest.is_file():
        return {**about, "digest": "", "wrong": ["no manifest"]}
    document: dict[str, Any] = json.loads(manifest.read_text())
    listed: dict[str, Any] = document["files"]
    files = (found for found in path.rglob("*") if found.is_file())
    there = {found.relative_to(path).as_posix() for found in files} - {manifest.name}
    wrong = [f"{name} is listed or there, not both" for name in sorted(there ^ set(listed))]
    wrong += [
        f"{name} has another digest"
        for name in sorted(there & set(listed))
        if sha256(path / name) != listed[name]["sha256"]
    ]
    counted = {"step": int(document.get("step", -1)), "updates": updates(path)}
    return {**about, **counted, "digest": sha256(manifest), "wrong": wrong}


def updates(path: Path) -> int:
    """Return the optimiser updates that a version's checkpoint counts, skipped ones included; -1 without a checkpoint."""
    root, (run, role, version) = path.parents[3], path.parts[-3:]
    states = (root / "checkpoints" / run / role).glob(f"{version}-*/state.json")
    counters = [json.loads(state.read_text())["counters"] for state in states]
    return max((int(c["updates"]) + int(c["skipped"]) for c in counters), default=-1)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
