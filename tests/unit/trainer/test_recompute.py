"""From a step's file alone, rows and metadata, its rewards, advantages and dropped votes are computed again."""

from __future__ import annotations

import itertools
import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from services.trainer.rows import OVER_BUDGET, Limits
from services.trainer.samples import SampleOptions, build_samples
from services.trainer.step_records import origin_of
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import Played, PolicyCredit, policy_credit
from triforge.algorithms.penalties import Acted, end_penalty, step_penalties
from triforge.config import parse
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import export_step_records, read_origin, write_step_records

ROOMY = Limits(max_tokens=1000, max_rows=0)


@pytest.mark.parametrize(
    "overrides",
    [
        {"vote_weight": "trust"},
        {"estimator": "within"},
        {"estimator": "group", "normalise": "others", "lam": 0.3},
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
    config = parse({"env_adapter": {"max_steps": 2}, "algorithm": {"overrides": overrides}})
    options = SampleOptions(
        algorithm=config.algorithm.resolved, policy_version=1, reward_version=1,
        policy_limits=ROOMY, reward_limits=Limits(max_tokens=1000, max_rows=3), seed=7, step=4, trust=0.4,
    )  # fmt: skip
    store, path = ArtifactStore(str(tmp_path)), tmp_path / "step.parquet"
    origin = origin_of(config, **{"4": options.numbers})
    write_step_records(store, path.name, build_samples([group], options).records, origin)
    rows, found = pq.read_table(path).to_pylist(), read_origin(path)
    assert parse(found["config"]) == config
    trajectories = [
        list(steps) for _, steps in itertools.groupby(rows, itemgetter("trajectory_id"))
    ]
    credit = _credit_of(trajectories, found)
    for t, steps in enumerate(trajectories):
        for i, row in enumerate(steps):
            assert row["reward"] == pytest.approx(credit.rewards[t][i])
            assert row["reason"] == (credit.reasons[t][i] or "")
            assert row["advantage"] == pytest.approx(
                0.0 if row["reason"] else credit.advantages[t][i]
            )
    dropped = [vote["reason"] for row in rows for vote in row["votes"]]
    assert dropped.count(OVER_BUDGET) == sum(r in ("", OVER_BUDGET) for r in dropped) - 3 > 0


def _credit_of(trajectories: list[list[dict[str, Any]]], origin: dict[str, Any]) -> PolicyCredit:
    """What `policy_credit` makes of the rows of one group and the metadata of their file."""
    algorithm = Algorithm.model_validate_json(json.dumps(origin["algorithm"]))
    turns, step = origin["config"]["env_adapter"]["max_steps"], trajectories[0][0]["step"]

    def each(name: str) -> list[list[Any]]:
        return [[row[name] for row in steps] for steps in trajectories]

    acted = [[Acted(len(r["response_ids"]), r["action_valid"]) for r in t] for t in trajectories]
    return policy_credit(
        [steps[0]["outcome"] for steps in trajectories],
        [[[vote["value"] for vote in row["votes"]] for row in steps] for steps in trajectories],
        algorithm=algorithm,
        trust=origin["steps"][str(step)]["trust"],
        played=Played(
            each("observation"),
            each("action"),
            [step_penalties(row, algorithm) for row in acted] if algorithm.penalises else None,
            [end_penalty(row, max_steps=turns, algorithm=algorithm) for row in acted]
            if algorithm.penalises
            else None,
            rewards=each("env_reward"),
        ),
        scores=[steps[0]["score"] for steps in trajectories],
    )


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
