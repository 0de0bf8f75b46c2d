"""From a step's file alone, rows and metadata, its rewards, advantages and dropped votes are computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.trainer.credit.options import SampleOptions
from services.trainer.credit.rows import OVER_BUDGET
from services.trainer.credit.samples import build_samples
from services.trainer.credit.step_records import origin_of
from services.trainer.replay.credit import compare, credit
from services.trainer.replay.recording import Recording
from tests.unit.trainer.played import group_task, judged
from triforge.config import parse
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import export_step_records, read_origin, write_step_records
from triforge.types import RunStep


@pytest.mark.parametrize(
    "overrides",
    [
        {"vote_weight": "trust"},
        {"estimator": "within"},
        {"estimator": "group", "normalise": "others", "lam": 0.3},
        {"judge_target": "centred"},
        {"step_cost": 0.1, "turn_limit_penalty": 0.5, "std_floor": 1.0},
    ],
    ids=str,
)
def test_a_step_s_file_alone_is_enough_to_recompute_its_credit(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
    group = judged(
        group_task("g1", max_steps=2),
        [1, -1, -1],
        [[[1, 1], [1, -1]], [[-1, 1], [-1, -1]], [[-1, 0]]],
        length=3,
    )
    config = parse(
        {
            "env_adapter": {"max_steps": 2},
            "algorithm": {"overrides": overrides},
            "trainer": {"reward": {"max_rows": 3}},
        }
    )
    options = SampleOptions.of(config, 4, {"policy": 1, "reward": 1}, trust=0.4)
    store, path = ArtifactStore(str(tmp_path)), tmp_path / "step.parquet"
    origin = origin_of(config, **{"4": options.numbers})
    write_step_records(store, path.name, build_samples([group], options).records, origin)
    step = RunStep(
        run_id="r", step=4, at=0.0, policy_version=1, reward_version=1, metrics={}, artifacts={"step_record": path.name}
    )  # fmt: skip
    record = Recording(run_id="r", steps=[step], artifacts=store).read(4)
    assert parse(record.config) == config
    again = credit(4, record)
    found = compare(record, again)
    assert found.verdict == "same", found.detail
    assert again.samples.records == record.records
    dropped = [vote["reason"] for row in again.samples.records for vote in row["votes"]]
    assert dropped.count(OVER_BUDGET) == sum(r in ("", OVER_BUDGET) for r in dropped) - 3 > 0


def test_an_export_keeps_what_its_files_follow_from_and_adds_the_proposals(tmp_path: Path) -> None:
    config, store = parse({"run": {"seed": 5}}), ArtifactStore(str(tmp_path))
    uris = [
        write_step_records(store, n, [], origin_of(config, **{n: {"trust": float(n)}}))
        for n in ("1", "2")
    ]
    uris.append(write_step_records(store, "evaluation", [], origin_of(config)))
    export_step_records(store, uris, tmp_path / "run.parquet", proposals=[{"id": "p"}])
    found = read_origin(tmp_path / "run.parquet")
    assert found["steps"] == {"1": {"trust": 1.0}, "2": {"trust": 2.0}}
    assert (parse(found["config"]), found["proposals"]) == (config, [{"id": "p"}])
