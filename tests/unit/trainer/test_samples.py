"""Every row that is trained on is on record, and a stranger can recompute it from the export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.credit.credited import NO_TOKENS, STALE, TOO_LONG
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.rows import OVER_BUDGET
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.loop.measures import sample_measures
from tests.unit.trainer.played import CONTEXT, group_task, judged, task_of, trajectory, votes_on
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.errors import StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import export_step_records, write_step_records
from triforge.types import JudgedGroup, TrainRow, TrajectoryGroup

VERSION, JUDGE_VERSION = 1, 1
PAIR = {"measure_parent", "measure_candidate"}
ROOMY = Limits(max_tokens=1000, max_rows=0)


def keep(
    groups: Sequence[JudgedGroup],
    *,
    preset: str = "rlanything",
    policy: Limits = ROOMY,
    reward: Limits = ROOMY,
    seed: int = 7,
    step: int | None = None,
    min_measured: int = 1,
    drop_stale_votes: bool = False,
    **overrides: Any,
) -> Samples:
    return build_samples(
        groups,
        SampleOptions(
            algorithm=resolve(preset, overrides),
            players={"policy": (VERSION, policy)},
            judging={"reward": (JUDGE_VERSION, reward)},
            seed=seed,
            step=step,
            min_measured=min_measured,
            drop_stale_votes=drop_stale_votes,
        ),
    )


# ---- invariants ----


@st.composite
def judged_groups(draw: st.DrawFn, name: str) -> JudgedGroup:
    """Any group: broken rollouts, empty answers, several segments, missing votes, samples of other versions."""
    purpose = draw(
        st.sampled_from(["train", "train", "measure_parent", "measure_candidate", "evaluate"])
    )
    rollouts = draw(st.integers(2, 4))
    group = group_task(name, purpose=purpose, rollouts=rollouts)
    trajectories, votes = [], []
    for index in range(rollouts):
        lengths = draw(st.lists(st.integers(0, 3), max_size=3))
        cuts = sorted(draw(st.integers(0, 1)) for _ in lengths)
        played = trajectory(
            group,
            index,
            outcome=draw(st.sampled_from([1, -1, None])),
            lengths=lengths,
            segments=[cut - cuts[0] for cut in cuts],
            version=draw(st.sampled_from([VERSION, VERSION, VERSION, 2, None])),
        )
        values = [draw(st.lists(st.sampled_from([1, -1, 0]), max_size=3)) for _ in lengths]
        given_votes = votes_on(
            played,
            values,
            version=draw(st.sampled_from([JUDGE_VERSION, JUDGE_VERSION, 3, None])),
            tokens=draw(st.integers(0, 2)),
        )
        trajectories.append(played)
        votes.append(given_votes if played.measured and draw(st.integers(0, 4)) else None)
    whole = TrajectoryGroup(group=group, task=task_of(group), trajectories=tuple(trajectories))
    return JudgedGroup(played=whole, votes=tuple(votes))


@st.composite
def steps(draw: st.DrawFn) -> list[JudgedGroup]:
    return [draw(judged_groups(f"g{number}")) for number in range(draw(st.integers(0, 3)))]


limits = st.builds(Limits, max_tokens=st.sampled_from([6, 1000]), max_rows=st.integers(0, 3))
presets = st.sampled_from(preset_names())
means = st.sampled_from(sorted(n for n in preset_names() if resolve(n).aggregation != "step_sum"))
thorough = settings(max_examples=60)


@thorough
@given(steps(), means, limits, limits)
def test_the_weights_of_all_rows_sum_to_one(
    groups: list[JudgedGroup], preset: str, policy: Limits, reward: Limits
) -> None:
    samples = keep(groups, preset=preset, policy=policy, reward=reward)
    for rows, limit in ((samples.rows["policy"], policy), (samples.rows["reward"], reward)):
        if rows:
            assert sum(sum(row.weights) for row in rows) == pytest.approx(1.0)
        assert limit.max_rows == 0 or len(rows) <= limit.max_rows
        assert all(len(row.ids) <= limit.max_tokens for row in rows)
        assert len({row.key for row in rows}) == len(rows)


@thorough
@given(steps(), presets, limits, limits)
def test_what_is_trained_on_has_a_weight_and_what_is_not_has_a_reason(
    groups: list[JudgedGroup], preset: str, policy: Limits, reward: Limits
) -> None:
    samples = keep(groups, preset=preset, policy=policy, reward=reward)
    assert len(samples.records) == sum(len(t.steps) for g in groups for t in g.played.trajectories)
    assert sum(samples.reasons.values()) == len(samples.records)
    for record in samples.records:
        for entry in (record, *record["votes"]):
            if entry["reason"]:
                assert entry["weight"] == 0.0, entry
                assert entry["advantage"] == 0.0 or entry["reason"] == NO_TOKENS, entry
            else:
                assert entry["weight"] > 0.0, entry
                # Whitened over the batch, an advantage of 0 is one like any other.
                assert entry["advantage"] != 0.0 or resolve(preset).whiten, entry
                assert entry["reward"] is not None


@thorough
@given(steps(), presets)
def test_evaluation_and_stale_samples_never_train(groups: list[JudgedGroup], preset: str) -> None:
    samples = keep(groups, preset=preset)
    trained = [r for r in samples.records if r["reason"] == ""]
    played = {"train"} | (set() if preset == "rlanything_paper" else PAIR)
    assert all(r["purpose"] in played for r in trained)
    assert all(set(r["policy_versions"]) == {VERSION} for r in trained)
    assert all(r["outcome"] is not None for r in trained)
    allowed = {r["trajectory_id"] for r in trained}
    assert {row.key.split("/")[0] for row in samples.rows["policy"]} == allowed
    votes = [(r, v) for r in samples.records for v in r["votes"] if v["reason"] == ""]
    assert all(r["purpose"] in played for r, _ in votes)
    assert all(set(v["versions"]) == {JUDGE_VERSION} for _, v in votes)
    assert len(samples.rows["reward"]) == len(votes)


@thorough
@given(steps(), presets, limits, limits)
def test_the_rows_are_the_records_token_for_token(
    groups: list[JudgedGroup], preset: str, policy: Limits, reward: Limits
) -> None:
    samples = keep(groups, preset=preset, policy=policy, reward=reward)
    expected = {row.key: row for row in _rows_of(samples.records)}
    assert {row.key for row in samples.rows["policy"]} == set(expected)
    for row in samples.rows["policy"]:
        wanted = expected[row.key]
        assert (row.ids, row.logprobs) == (wanted.ids, wanted.logprobs)
        assert row.advantages == wanted.advantages
        assert row.weights == pytest.approx(wanted.weights)
        assert all(
            version == VERSION
            for version, weight in zip(row.versions, row.weights, strict=True)
            if weight
        )


def _rows_of(records: list[dict[str, Any]]) -> list[TrainRow]:
    """The policy's rows, from the records alone: a segment is the contexts and responses of its steps."""
    segments: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        key = f"{record['trajectory_id']}/{record['segment']}"
        segments.setdefault(key, []).append(record)
    rows = []
    for key, parts in segments.items():
        ids: list[int] = []
        logprobs: list[float] = []
        advantages: list[float] = []
        weights: list[float] = []
        versions: list[int] = []
        for part in parts:
            context, response = part["context_ids"], part["response_ids"]
            ids += [*context, *response]
            logprobs += [*[0.0] * len(context), *part["response_logprobs"]]
            advantages += [*[0.0] * len(context), *[part["advantage"]] * len(response)]
            versions += [*[-1] * len(context), *part["policy_versions"]]
            share = part["weight"] / len(response) if response else 0.0
            weights += [*[0.0] * len(context), *[share] * len(response)]
        if any(weights):
            rows.append(
                TrainRow(
                    key=key, ids=tuple(ids), logprobs=tuple(logprobs), advantages=tuple(advantages),
                    weights=tuple(weights), versions=tuple(versions), task_id="task",
                )
            )  # fmt: skip
    return rows


# ---- reasons, one by one ----


def one_group(**changes: Any) -> JudgedGroup:
    """Two rollouts of one step, one won and one lost; one of the four votes is wrong."""
    return judged(group_task(), [1, -1], [[[1, 1]], [[1, -1]]], **changes)


def reasons(samples: Samples) -> list[str]:
    return [record["reason"] for record in samples.records]


def vote_reasons(samples: Samples) -> set[str]:
    return {vote["reason"] for record in samples.records for vote in record["votes"]}


def test_a_good_and_a_bad_rollout_train_the_policy_with_opposite_advantages() -> None:
    samples = keep([one_group()])
    assert reasons(samples) == ["", ""]
    assert [row.advantages for row in samples.rows["policy"]] == [(0, 0, 1.0), (0, 0, -1.0)]
    assert [row.weights for row in samples.rows["policy"]] == [(0, 0, 0.5), (0, 0, 0.5)]
    assert samples.reasons == {"trained": 2}


@pytest.mark.parametrize("version", [0, 2])
def test_samples_of_any_other_weight_version_are_stale(version: int) -> None:
    samples = keep([one_group(version=version)])
    assert (reasons(samples), samples.rows["policy"]) == ([STALE, STALE], [])
    judged_by_another = keep([one_group(judge_version=version)])
    assert vote_reasons(judged_by_another) == {STALE, "zero advantage"}
    assert judged_by_another.rows["reward"] == []
    assert reasons(judged_by_another) == ["", ""]


def test_a_row_longer_than_max_tokens_is_left_out_whole() -> None:
    assert reasons(keep([one_group()], policy=Limits(max_tokens=2, max_rows=0))) == [TOO_LONG] * 2
    assert reasons(keep([one_group()], policy=Limits(max_tokens=3, max_rows=0))) == ["", ""]


def test_a_response_without_tokens_is_not_trained_on() -> None:
    samples = keep([one_group(length=0)])
    assert (reasons(samples), samples.rows["policy"]) == ([NO_TOKENS, NO_TOKENS], [])
    # the trainer that has its tokens got this advantage
    assert [record["advantage"] for record in samples.records] == [1.0, -1.0]
    assert [record["weight"] for record in samples.records] == [0.0, 0.0]


def test_the_draw_of_max_rows_is_seeded_and_the_rest_is_over_budget() -> None:
    groups = [judged(group_task(f"g{n}"), [1, -1], [[[1]], [[-1]]]) for n in range(10)]
    small = Limits(max_tokens=1000, max_rows=5)
    first, again, other = (keep(groups, policy=small, seed=seed) for seed in (1, 1, 2))
    keys = [[row.key for row in samples.rows["policy"]] for samples in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]
    assert len(keys[0]) == 5
    assert first.reasons == {"trained": 5, OVER_BUDGET: 15}
    assert sum(record["weight"] for record in first.records) == pytest.approx(1.0)


def test_a_step_says_which_share_of_eligible_votes_is_trained_on_and_why_the_rest_is_not() -> None:
    inside = [judged(group_task(f"g{n}"), [1, -1], [[[1, 1]], [[1, 1]]]) for n in range(2)]
    outside = judged(group_task("h"), [-1, -1], [[[1]], [[-1]]])
    small = Limits(max_tokens=1000, max_rows=6)
    samples = keep([*inside, outside], reward=small)
    assert samples.vote_reasons == {"trained": 6, OVER_BUDGET: 2, "outside reward band": 2}
    found = sample_measures(samples)
    assert found["votes/trained_share"] == 0.75
    assert (found["votes/trained"], found[f"votes/{OVER_BUDGET}"]) == (6.0, 2.0)
    assert found["votes/outside reward band"] == 2.0
    assert sample_measures(keep([*inside, outside]))["votes/trained_share"] == 1.0
    assert "votes/trained_share" not in sample_measures(keep([outside]))


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, {"measure_parent", "measure_candidate"}),
        ({"train_on_pairs": "parent"}, {"measure_parent"}),
        ({"train_on_pairs": "none"}, set()),
        ({"preset": "rlanything_paper"}, set()),
    ],
    ids=["both", "parent", "none", "paper"],
)
def test_the_groups_of_a_pair_train_both_models_as_far_as_the_algorithm_says(
    options: dict[str, Any], trained: set[str]
) -> None:
    pair = [
        judged(group_task(purpose, purpose=purpose), [1, -1], [[[1, 1]], [[1, -1]]])
        for purpose in ("measure_parent", "measure_candidate")
    ]
    samples = keep([*pair, judged(group_task("train"), [1, -1], [[[1, 1]], [[1, -1]]])], **options)
    left = {"measures a rewrite": 4 - 2 * len(trained)} if len(trained) < 2 else {}
    assert samples.reasons == {"trained": 2 + 2 * len(trained)} | left
    for role in ("policy", "reward"):
        assert {row.key.split("-")[0] for row in samples.rows[role]} == trained | {"train"}


def test_a_rollout_without_outcome_is_on_record_with_its_error_and_trains_no_model() -> None:
    group = judged(group_task(), [1, None], [[[1, 1]], [[]]])
    lost = keep([group]).records[1]
    assert (lost["outcome"], lost["outcome_error"]) == (None, "it broke")
    assert (lost["reward"], lost["reason"], lost["measured"]) == (None, "no outcome", 1)


# ---- the export ----


def test_a_stranger_recomputes_reward_advantage_and_weight_from_the_export(tmp_path: Path) -> None:
    first = judged(
        group_task("g1"),
        [1, -1, -1],
        [[[1, 1], [1, -1]], [[-1, 1], [-1, -1]], [[-1, 0]]],
        length=3,
    )
    second = judged(group_task("g2"), [1, -1], [[[1, 1]], [[1, -1]]], length=2)
    store = ArtifactStore(str(tmp_path / "artifacts"))
    uris = [
        write_step_records(store, f"{n}.parquet", keep([group]).records)
        for n, group in enumerate((first, second))
    ]
    path = tmp_path / "run.parquet"
    assert export_step_records(store, uris, path) == 7
    rows = pq.read_table(path).to_pylist()
    for group_id in ("g1", "g2"):
        mine = [row for row in rows if row["group_id"] == group_id]
        _recompute_policy(mine)
        _recompute_votes(mine)


def _recompute_policy(rows: list[dict[str, Any]]) -> None:
    """R = O + mean(S); z-scores among the steps of equal index, deviations below 0.5 raised to it."""
    reward = np.array(
        [row["outcome"] + np.mean([v["value"] for v in row["votes"]]) for row in rows]
    )
    np.testing.assert_allclose([row["reward"] for row in rows], reward)
    index = np.array([row["step_index"] for row in rows])
    advantage = np.zeros(len(rows))
    for i in np.unique(index):
        here = index == i
        if here.sum() > 1 and reward[here].std() > 0:
            advantage[here] = (reward[here] - reward[here].mean()) / max(reward[here].std(), 0.5)
    np.testing.assert_allclose([row["advantage"] for row in rows], advantage, atol=1e-12)
    trained = np.array([row["reason"] == "" for row in rows])
    np.testing.assert_array_equal(trained, advantage != 0)
    np.testing.assert_allclose([row["weight"] for row in rows], trained / trained.sum())


def _recompute_votes(rows: list[dict[str, Any]]) -> None:
    """R * S, an invalid vote -2; z-scores over the task's valid votes; no gift for a vote without reward."""
    votes = [(row, vote) for row in rows for vote in row["votes"]]
    value = np.array([vote["value"] for _, vote in votes])
    reward = np.array(
        [row["reward"] * vote["value"] if vote["value"] else -2.0 for row, vote in votes]
    )
    valid = value != 0
    spread = max(reward[valid].std(), 0.5)
    advantage = np.where(valid, (reward - reward[valid].mean()) / spread, 0.0)
    advantage[valid & (advantage > 0) & (reward <= 0)] = 0.0
    advantage[~valid] = min(0.0, advantage[valid].min()) - 1.0
    np.testing.assert_allclose([vote["reward"] for _, vote in votes], reward)
    np.testing.assert_allclose([vote["advantage"] for _, vote in votes], advantage, atol=1e-12)
    trained = np.array([vote["reason"] == "" for _, vote in votes])
    np.testing.assert_array_equal(trained, advantage != 0)
    np.testing.assert_allclose([vote["weight"] for _, vote in votes], trained / trained.sum())


def test_an_export_holds_ids_logprobs_versions_and_texts(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    uri = write_step_records(store, "one.parquet", keep([one_group(length=2)]).records)
    export_step_records(store, [uri], tmp_path / "out" / "run.parquet")
    row = pq.read_table(tmp_path / "out" / "run.parquet").to_pylist()[0]
    assert (row["context_ids"], row["response_ids"]) == ([*CONTEXT], [1, 2])
    assert row["response_logprobs"] == [-0.5, -0.5]
    assert (row["policy_versions"], row["task_id"], row["task_version"]) == (
        [VERSION] * 2,
        "task",
        0,
    )
    assert (row["observation"], row["response"], row["action"]) == ("o0", "r0", "a0")
    assert [(v["value"], v["text"], v["versions"]) for v in row["votes"]] == [
        (1, "good", [1, 1])
    ] * 2
    assert row["judge_prompt_ids"] == [200, 201, 202]


def test_an_export_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "artifacts"))
    good = write_step_records(store, "good.parquet", keep([one_group()]).records)
    bad = store.write("bad.parquet", b"this is no Parquet file")
    with pytest.raises(StorageError, match="cannot export"):
        export_step_records(store, [good, bad], tmp_path / "run.parquet")
    (tmp_path / "artifacts" / "good.parquet").unlink()
    with pytest.raises(LookupError, match="not found"):
        export_step_records(store, [good], tmp_path / "run.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["artifacts"]
