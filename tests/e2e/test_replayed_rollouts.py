"""The recorded run's loop once more, every service a process, without models."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.trainer.replay.recording import Recording
from services.trainer.replay.rollouts import replay_rollouts
from triforge.errors import InputError

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    recorded = Path(__file__).parents[1] / "recorded_run"
    return Recording.of_folder(shutil.copytree(recorded, tmp_path / "recorded"))


def change_end(path: Path) -> None:
    """Write a step's record in which the last rollout has seen something else, and the judge was asked something else."""
    table = pq.read_table(path)
    for name, value in (("next_observation", "a wall"), ("judge_prompt_ids", [1])):
        place, kind = table.schema.get_field_index(name), table.schema.field(name)
        values = [*table.column(name).to_pylist()[:-1], value]
        table = table.set_column(place, kind, pa.array(values, kind.type))
    pq.write_table(table, path)


async def test_services_come_to_what_was_recorded_and_to_nothing_else(recording: Recording) -> None:
    change_end(recording.artifacts.local_path(recording.steps[2].artifacts["step_record"]))
    found = [(step, one.part, one.verdict) for step, one in await replay_rollouts(recording)]
    assert found == [
        (1, "rollouts", "same"), (2, "rollouts", "same"), (3, "rollouts", "differs"), (3, "prompts", "differs"),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [{"pool": {}}, {"paths": {"policy": "/models/policy"}}])
async def test_a_record_that_lacks_something_is_refused(
    recording: Recording, missing: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="--save"):
        await replay_rollouts(dataclasses.replace(recording, **missing))
