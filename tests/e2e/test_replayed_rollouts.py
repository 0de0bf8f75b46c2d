"""The recorded run's loop once more, every service a process, without models."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.trainer.recording import Recording
from services.trainer.replayed_rollouts import replay_rollouts
from triforge.errors import InputError

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def recording() -> Recording:
    return Recording.of_path(Path(__file__).parents[1] / "recorded_run")


def changed(data: bytes) -> bytes:
    """A step's record in which the last rollout has seen something else at its end, and the judge was asked something else."""
    table = pq.read_table(io.BytesIO(data))
    for name, value in (("next_observation", "a wall"), ("judge_prompt_ids", [1])):
        place, kind = table.schema.get_field_index(name), table.schema.field(name)
        values = [*table.column(name).to_pylist()[:-1], value]
        table = table.set_column(place, kind, pa.array(values, kind.type))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


async def test_services_come_to_what_was_recorded_and_to_nothing_else(recording: Recording) -> None:
    source = recording.source
    other = dataclasses.replace(
        recording, source=lambda step: changed(source(step)) if step == 3 else source(step)
    )
    found = [(step, one.part, one.verdict) for step, one in await replay_rollouts(other)]
    assert found == [
        (1, "rollouts", "same"), (2, "rollouts", "same"), (3, "rollouts", "differs"), (3, "prompts", "differs"),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [{"pool": {}}, {"paths": {"policy": "/models/policy"}}])
async def test_a_record_that_lacks_something_is_refused(
    recording: Recording, missing: dict[str, object]
) -> None:
    with pytest.raises(InputError, match="--save"):
        await replay_rollouts(dataclasses.replace(recording, **missing))
