"""How estimators, filters, shapers and aggregations act on the rows and records of a step."""

from __future__ import annotations

from typing import Any

import pytest

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.algorithm import resolve
from triforge.types import ImageRef, JudgedGroup, Step

ROOMY = Limits(max_tokens=1000, max_rows=0, response=8)


def keep(groups: list[JudgedGroup], preset: str = "grpo", **overrides: Any) -> Samples:
    return build_samples(
        groups,
        SampleOptions(
            algorithm=resolve(preset, overrides),
            players={"policy": (1, ROOMY)},
            judging={"reward": (1, ROOMY)},
            seed=7,
        ),
    )


def played(
    group_id: str, outcomes: list[int | None], steps: int = 2, length: int = 1
) -> JudgedGroup:
    group = group_task(group_id, rollouts=len(outcomes), max_steps=steps)
    return judged(group, outcomes, [[[]] * steps] * len(outcomes), length=length)


def changed(group: JudgedGroup, change: Any) -> JudgedGroup:
    """The same group, every step changed by `change(trajectory index, step)`."""
    trajectories = tuple(
        t.model_copy(update={"steps": tuple(change(t.index, step) for step in t.steps)})
        for t in group.played.trajectories
    )
    changed = group.played.model_copy(update={"trajectories": trajectories})
    return group.model_copy(update={"played": changed})


def by_step(samples: Samples) -> dict[tuple[str, int], float]:
    return {(r["trajectory_id"], r["step_index"]): r["advantage"] for r in samples.records}


def test_gigpo_reads_the_observations_of_the_trajectories():
    """The first step is taken in the same state by both; at the second one only the second trajectory has moved on."""
    group = changed(
        played("g", [1, -1]),
        lambda t, s: s.model_copy(update={"observation": f"{t}" if s.index else "start"}),
    )
    found = by_step(keep([group], preset="gigpo"))
    assert found["g-00", 0] == pytest.approx(2.0, abs=1e-5)  # 1 among trajectories, 1 in the state
    assert found["g-00", 1] == pytest.approx(1.0, abs=1e-5)  # the only one in its state
    assert found["g-01", 0] == pytest.approx(-2.0, abs=1e-5)


def test_a_state_is_what_was_seen_pictures_included():
    def with_picture(t: int, step: Step) -> Step:
        image = ImageRef(
            id=f"sha256:{t:064x}", media_type="image/png", size=1, width=1, height=1
        )  # fmt: skip
        return step.model_copy(update={"images": (image,)})

    plain = by_step(keep([played("g", [1, -1])], preset="gigpo"))
    pictured = by_step(keep([changed(played("g", [1, -1]), with_picture)], preset="gigpo"))
    assert plain["g-00", 0] == pytest.approx(2.0, abs=1e-5)
    assert pictured["g-00", 0] == pytest.approx(1.0, abs=1e-5)


def test_whitening_spans_the_groups_of_a_batch_and_is_what_the_records_say():
    samples = keep(
        [played("g", [1, -1]), played("h", [1, 1])], normalise="mean", outcome="binary", whiten=True
    )
    advantages = [
        a
        for row in samples.rows["policy"]
        for a, w in zip(row.advantages, row.weights, strict=True)
        if w
    ]
    assert sum(advantages) == pytest.approx(0.0)
    assert sum(a * a for a in advantages) / len(advantages) == pytest.approx(1.0, abs=1e-5)
    assert by_step(samples)["g-00", 0] == pytest.approx(1.414214, abs=1e-5)
    assert samples.reasons == {"trained": 8}


def test_a_group_in_which_nothing_can_be_learnt_is_counted():
    samples = keep([played("g", [1, -1]), played("h", [1, 1]), played("i", [None, None])])
    assert (samples.asked, samples.dead, samples.partial) == (2, 1, 1)
    assert {row.key.split("-")[0] for row in samples.rows["policy"]} == {"g"}
    assert (keep([]).rows["policy"], keep([]).dead) == ([], 0)


def test_groups_that_differ_least_are_left_out_with_the_reason():
    groups = [played("g", [1, -1, -1, -1]), played("h", [1, 1, -1, -1])]
    samples = keep(groups, group_filter="variance_topk", filter_keep=0.5)
    assert {row.key.split("-")[0] for row in samples.rows["policy"]} == {"h"}
    assert samples.reasons["low spread"] == 8
    half = keep(groups, group_filter="variance_topk", filter_keep=0.5, filter_scale="linear")
    assert sum(sum(row.weights) for row in half.rows["policy"]) == pytest.approx(0.5)


def test_a_response_that_was_cut_off_is_masked_on_request():
    def cut(t: int, step: Step) -> Step:
        return step.model_copy(update={"finish": "length"}) if t == 0 and step.index == 1 else step

    group = changed(played("g", [1, -1]), cut)
    assert keep([group]).reasons == {"trained": 4}
    masked = keep([group], truncated="mask")
    assert masked.reasons == {"trained": 3, "truncated response": 1}
    assert sum(sum(row.weights) for row in masked.rows["policy"]) == pytest.approx(1.0)


def test_an_invalid_action_costs_what_the_shaper_says():
    def invalid(t: int, step: Step) -> Step:
        return step.model_copy(update={"action_valid": not (t == 0 and step.index == 1)})

    samples = keep([changed(played("g", [1, 1]), invalid)], invalid_action_penalty=0.1)
    assert [record["reward"] for record in samples.records] == [0.9, 0.9, 1.0, 1.0]
    assert by_step(samples)["g-00", 0] == pytest.approx(-1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("step_sum", [1 / (6 * 8)] * 6),
        ("trajectory_mean", [1 / (3 * 2)] * 2 + [1 / (3 * 2)] * 4),
        ("task_mean", [1 / 4] * 2 + [1 / 8] * 4),
    ],
)
def test_each_aggregation_has_its_own_denominator(aggregation: str, expected: list[float]):
    """One measured trajectory in the first task, two in the second; two steps of one token each."""
    samples = keep(
        [played("g", [1, None]), played("h", [1, -1])],
        normalise="raw",
        whiten=True,
        aggregation=aggregation,
    )
    weights = [w for row in samples.rows["policy"] for w in row.weights if w]
    assert weights == pytest.approx(expected)
