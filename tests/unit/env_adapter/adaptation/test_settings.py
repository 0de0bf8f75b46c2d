"""The settings of a run are read from its stored options."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.adaptation.settings import AdaptSettings, RunSettings
from services.trainer.runs.store import RunStore
from triforge.config import RunConfig
from triforge.errors import NotFoundError
from triforge.store.database import Database


def config(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(sections)


@pytest.mark.parametrize(
    ("bound", "given", "gap"), [(0, None, 0), (2, None, 2), (2, 0, 0), (0, 3, 3)]
)
def test_a_pair_may_span_what_the_run_may_lag_unless_the_option_is_set(
    bound: int, given: int | None, gap: int
) -> None:
    found = config(adaptation={"max_version_gap": given}, run={"staleness_bound": bound})
    assert AdaptSettings.of(found).version_gap == gap


def test_the_sections_of_a_run_are_read_from_the_store(database: Database) -> None:
    chosen = {
        "controller": "rlve",
        "max_drift": 0.6,
        "original_share": 0.25,
    }
    given = config(
        adaptation=chosen,
        env_adapter={"max_steps": 3},
        algorithm={"preset": "grpo"},
        methods={"rlve": {"levels": 2}},
    )
    document = given.model_dump(mode="json")
    run = RunStore(database).create(name="r", pool_id="p", config=document)
    found = RunSettings(database).read(run.id)
    assert found == AdaptSettings.of(given)
    assert (found.adaptation, found.env_adapter) == (given.adaptation, given.env_adapter)
    assert found.algorithm == given.algorithm.resolved


def test_the_settings_of_an_unknown_run_do_not_exist(database: Database) -> None:
    with pytest.raises(NotFoundError):
        RunSettings(database).read("run-x")
