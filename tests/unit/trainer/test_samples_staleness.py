"""Samples of older weights, votes that are too old, and groups that are not whole."""

from __future__ import annotations

from services.trainer.credit.credited import PARTIAL, STALE
from services.trainer.credit.options import Limits
from tests.unit.trainer.played import group_task, judged
from tests.unit.trainer.test_samples import keep, one_group, reasons, vote_reasons
from triforge.types import JudgedGroup, VersionSpan


def within(bound: int) -> Limits:
    return Limits(max_tokens=1000, max_rows=0, bound=bound)


def of_two_versions(first: int, second: int) -> JudgedGroup:
    """Rollout 0 in whose single response the weights changed, and one by the newer weights."""
    group = one_group(length=2, version=second)
    crossed = group.played.trajectories[0]
    spans = (
        VersionSpan(version=first, start=2, end=3),
        VersionSpan(version=second, start=3, end=4),
    )
    segment = crossed.segments[0].model_copy(update={"versions": spans})
    moved = crossed.model_copy(update={"segments": (segment,)})
    played = group.played.model_copy(update={"trajectories": (moved, group.played.trajectories[1])})
    return group.model_copy(update={"played": played})


def test_every_trained_token_carries_the_version_that_sampled_it() -> None:
    samples = keep([of_two_versions(0, 1)], policy=within(1))
    assert [row.versions for row in samples.rows["policy"]] == [(-1, -1, 0, 1), (-1, -1, 1, 1)]
    assert dict(samples.ages["policy"]) == {0: 3, 1: 1}
    assert [r["policy_versions"] for r in samples.records] == [[0, 1], [1, 1]]


def test_a_response_with_one_token_over_the_bound_is_not_trained_on() -> None:
    samples = keep([of_two_versions(0, 1)])
    assert reasons(samples) == [STALE, ""]
    assert dict(samples.ages["policy"]) == {0: 2}
    assert reasons(keep([of_two_versions(1, 2)], policy=within(5))) == [STALE, STALE], "the future"


def test_votes_over_their_own_bound_do_not_train_the_judge() -> None:
    old = one_group(judge_version=0)
    assert vote_reasons(keep([old])) == {STALE, "zero advantage"}
    assert vote_reasons(keep([old], reward=within(1))) == vote_reasons(keep([one_group()]))
    assert dict(keep([old], reward=within(1)).ages["reward"]).keys() == {1}


def test_a_group_whose_votes_are_too_old_is_credited_by_outcome_alone() -> None:
    old, by_outcome = one_group(judge_version=0), keep([one_group()], use_votes=False)
    kept, dropped = keep([old]), keep([old], drop_stale_votes=True)
    assert dropped.voteless == 1
    assert [r["advantage"] for r in dropped.records] == [r["advantage"] for r in by_outcome.records]
    assert [r["reward"] for r in dropped.records] != [r["reward"] for r in kept.records]
    assert dropped.rows["reward"] == []
    assert keep([one_group()], drop_stale_votes=True) == keep([one_group()])


def test_without_its_votes_a_group_is_not_estimated_by_what_reads_them() -> None:
    group = judged(group_task(), [1, -1], [[[1], [-1]], [[1], [-1]]], judge_version=0)
    dropped = keep([group], drop_stale_votes=True, estimator="within")
    by_outcome = keep([group], use_votes=False, estimator="group")
    assert [r["advantage"] for r in dropped.records] == [r["advantage"] for r in by_outcome.records]


def test_a_group_with_too_few_measured_rollouts_is_on_record_and_not_trained_on() -> None:
    partial = judged(group_task(), [1, None], [[[1, -1]], [[]]])
    samples = keep([partial, one_group()], min_measured=2)
    assert reasons(samples) == [PARTIAL, PARTIAL, "", ""]
    assert (samples.partial, len(samples.rows["policy"])) == (1, 2)
    assert {v["reason"] for v in samples.records[0]["votes"]} == {PARTIAL}
    assert keep([partial]).partial == 0


def test_a_record_names_the_step_that_trained_on_it() -> None:
    assert {r["step"] for r in keep([one_group()]).records} == {1}
    assert {r["step"] for r in keep([one_group()], step=7).records} == {7}
