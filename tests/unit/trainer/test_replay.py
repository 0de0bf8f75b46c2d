"""A run once more from its record: the recorded demo run of this folder's parent, and what a replay says of another one."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from services.trainer.credit.batches import batch_of
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.replay.credit import credit
from services.trainer.replay.learner import ReplayedLearner
from services.trainer.replay.recording import Recording
from services.trainer.replay.replay import main, replay, what_if
from services.trainer.runs.store import RunStore
from triforge.errors import InputError, NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database
from triforge.store.training_logprobs import recorded_logprobs
from triforge.types import WeightVersion

RECORDED = (
    Path(__file__).parents[2] / "recorded_run"
)  # python -m scripts.record_run tests/recorded_run
STEPS = (1, 2, 3)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording.of_folder(shutil.copytree(RECORDED, tmp_path / "recorded"))


def verdicts(
    recording: Recording, only: int | None = None, **how: Any
) -> dict[tuple[int, str], str]:
    found = replay(recording, only, learners=how.get("learners", True))
    return {(step, finding.part): finding.verdict for step, finding in found}


def test_the_recorded_run_comes_out_as_it_was_recorded(recording: Recording) -> None:
    found = verdicts(recording)
    assert [found[step, "credit"] for step in STEPS] == ["same"] * 3
    for role in ("policy", "reward"):
        learnt = [found[step, f"{role} learner"] for step in STEPS]
        assert learnt[0] in ("same", "rounding")
        # another kind of machine sums in another order: from there on its weights are not the run's
        assert learnt[1:] == (["same"] * 2 if learnt[0] == "same" else ["not recomputed"] * 2)


def change_first(recording: Recording, column: str, change: Any, kind: str = "steps") -> None:
    """Change a column of the first step's record, or of another file of the step."""
    path = recording.artifacts.local_path(f"runs/{recording.run_id}/{kind}/00001.parquet")
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    values = [change(value) for value in table.column(column).to_pylist()]
    about = table.schema.field(column)
    pq.write_table(table.set_column(place, about, pa.array(values, about.type)), path)


@pytest.mark.parametrize(
    ("column", "change", "expected"),
    [
        ("advantage", lambda value: value * (1 + 2**-52), "rounding"),
        ("advantage", lambda value: value * 1.001, "differs"),
        ("outcome", lambda value: -value, "differs"),
        ("reason", lambda value: value or "stale weight version", "differs"),
    ],
)
def test_a_record_in_which_a_number_was_changed_differs(
    recording: Recording, column: str, change: Any, expected: str
) -> None:
    change_first(recording, column, change)
    assert verdicts(recording, 1, learners=False) == {(1, "credit"): expected}


def test_another_loss_on_record_differs(recording: Recording) -> None:
    step = recording.steps[0]
    other = step.model_copy(update={"metrics": step.metrics | {"policy/grad_norm": 7.0}})
    changed = dataclasses.replace(recording, steps=[other])
    found = verdicts(changed)
    assert found[1, "policy learner"] == "differs"
    assert found[1, "reward learner"] in ("same", "rounding")


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("logprobs", lambda values: [*values[:-1], values[-1] + 0.001]),
        ("places", lambda values: [n + 1 for n in values]),
    ],
)
def test_another_log_probability_or_another_token_on_record_differs(
    recording: Recording, column: str, change: Any
) -> None:
    change_first(recording, column, change, "logprobs")
    found = verdicts(recording, 1)
    assert found[1, "policy learner"] == "differs"
    assert found[1, "reward learner"] in ("same", "rounding")


def publish(recording: Recording, taken: float = 1.0) -> None:
    """Keep the version of the first step, the step taken so far."""
    record = recording.read(1)
    again = credit(1, record)
    rows, version = again.samples.rows["policy"], int(record.numbers["policy_version"])
    initial = WeightVersion(number=version, folder=recording.paths["policy"])
    batch = batch_of(
        again.config, recording.run_id, "policy", 1, rows, uri="", initial=initial, start=initial,
    )  # fmt: skip
    learner = Learner.fresh(Path(initial.folder))
    parameters = learner.model.parameters().values()
    start = [parameter.detach().clone() for parameter in parameters]
    report = learner.train(batch, rows)
    for parameter, before in zip(parameters, start, strict=True):
        parameter.data = torch.lerp(before, parameter.data, taken)
    CheckpointStore(recording.artifacts, recording.run_id, "policy").publish(
        learner, batch, report, keep=2
    )


@pytest.mark.parametrize(("taken", "expected"), [(1.0, ("same", "rounding")), (-1.0, ("differs",)), (2.0, ("differs",))])  # fmt: skip
def test_new_weights_are_compared_with_those_that_are_kept(
    recording: Recording, taken: float, expected: tuple[str, ...]
) -> None:
    publish(recording, taken)
    found = [finding for _, finding in replay(recording, 1, learners=True)]
    assert found[1].verdict in expected
    assert "new weights" in found[1].detail


def test_a_step_alone_begins_with_weights_that_are_kept(recording: Recording) -> None:
    gone = verdicts(recording, 2)
    assert gone[2, "policy learner"] == "not recomputed"
    publish(recording)
    assert verdicts(recording, 2)[2, "policy learner"] in ("same", "rounding")
    assert verdicts(recording, 2)[2, "reward learner"] == "not recomputed"


@pytest.mark.parametrize("measured", [{"policy/restarted": 1.0}, {"rows/policy": 99.0}])
def test_a_batch_that_a_method_changed_is_not_recomputed(
    recording: Recording, measured: dict[str, float]
) -> None:
    credited, step = credit(1, recording.read(1)), recording.steps[0]
    step = step.model_copy(update={"metrics": step.metrics | measured})
    learner = ReplayedLearner(recording, "policy")
    finding = learner.step(step, credited, recording.base["policy"])
    assert finding is not None
    assert finding.verdict == "not recomputed"


def test_other_rules_drop_turn_and_add_samples(recording: Recording) -> None:
    found = {
        (step, role): change for step, role, change in what_if(recording, ["algorithm.preset=grpo"])
    }
    assert set(found) == {(step, role) for step in STEPS for role in ("policy", "reward")}
    policy, reward = found[1, "policy"], found[1, "reward"]
    assert reward.trained[1] == 0
    assert reward.dropped == reward.trained[0] > 0
    assert policy.trained[1] == policy.trained[0] - policy.dropped + policy.added
    assert policy.size[0] != policy.size[1]
    same = [c for _, _, c in what_if(recording, ["run.name=other"])]
    assert all(c.flipped == c.dropped == c.added == 0 and c.size[0] == c.size[1] for c in same)


@pytest.fixture
def store(database: Database) -> RunStore:
    return RunStore(database)


def test_a_run_of_a_deployment_is_saved_and_replays_elsewhere(
    recording: Recording, store: RunStore, tmp_path: Path
) -> None:
    artifacts = ArtifactStore(str(tmp_path / "artifacts"))
    run = store.create(name="r", pool_id="pool-1", config={})
    with pytest.raises(NotFoundError):
        Recording.of_run(store, artifacts, run.id)
    logprobs = recording.artifacts.local_path(f"runs/{recording.run_id}/logprobs")
    shutil.copytree(logprobs, artifacts.local_path(f"runs/{run.id}/logprobs"))
    notes = {"paths": dict(recording.paths), "base": dict(recording.base)}
    store.begin(run.id, state=notes, versions={"policy": 1, "reward": 1})
    for step in recording.steps:
        uri = artifacts.write(
            f"runs/{run.id}/steps/{step.step:05d}.parquet", recording.source(step.step)
        )
        new = {"run_id": run.id, "artifacts": {"step_record": uri}}
        store.commit_step(step.model_copy(update=new))
        for role, version in (("policy", step.policy_version), ("reward", step.reward_version)):
            place = artifacts.local_path(f"weights/{run.id}/{role}/v{version:06d}")
            store.add_weights(run.id, role, version, str(place), "")
    Recording.of_run(store, artifacts, run.id).save(tmp_path / "sent")
    shutil.rmtree(tmp_path / "artifacts")
    sent = Recording.of_folder(tmp_path / "sent")
    assert sent.folders == recording.folders
    assert recorded_logprobs(sent.artifacts, run.id, 3).num_rows
    assert verdicts(sent, 1) == verdicts(recording, 1)
    with pytest.raises(InputError, match="--save"):
        sent.save(tmp_path / "sent")


def test_the_command_takes_a_step_and_says_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(RECORDED), "--credit-only", "--step", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["credit: 1 same"]
    with pytest.raises(InputError, match="--step"):
        main([str(RECORDED), "--step", "9"])
    with pytest.raises(InputError, match="--save"):
        main([__file__])
