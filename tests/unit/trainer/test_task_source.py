"""The outcome of a group that adaptation gets."""

from __future__ import annotations

from typing import Any

from services.trainer.loop.task_source import task_outcome
from tests.unit.trainer.played import group_task, judged
from triforge.config import RunConfig
from triforge.rollout.window import Offer
from triforge.types import ErrorInfo, JudgedGroup, Outcome, RunState, TaskOutcome

BROKEN = ErrorInfo(kind="environment", detail="it broke", retryable=True)
OFFER = Offer(round=7, step=5, versions=(3, 2))
RUN = RunState(
    id="run", name="run", pool_id="pool", status="running", step=5, steps=9, policy_version=3,
    reward_version=2, created_at=0.0, updated_at=0.0,
)  # fmt: skip


def config(**adaptation: Any) -> RunConfig:
    return RunConfig.model_validate({"adaptation": adaptation})


def played(*outcomes: int | None, version: int = 4, **task: Any) -> JudgedGroup:
    values = [[[1, -1]] for _ in outcomes]
    return judged(group_task(rollouts=len(outcomes), **task), outcomes, values, version=version)


def outcome_of(group: JudgedGroup, **adaptation: Any) -> TaskOutcome:
    return task_outcome(group, OFFER, run=RUN, config=config(**adaptation))


def test_an_outcome_has_the_round_and_the_versions_that_sampled_its_group() -> None:
    found = outcome_of(played(1, -1, None))
    assert (found.step, found.policy_version, found.newest_version) == (7, 4, 4)
    assert (found.successes, found.measured, found.rollouts) == (1, 2, 3)


def test_an_outcome_has_the_mean_score_of_what_was_measured_also_where_success_is_not_known() -> (
    None
):
    assert (outcome_of(played(1, -1, None)).score, outcome_of(played(1, -1, None)).scored) == (
        0.5,
        2,
    )
    assert (outcome_of(played(None)).score, outcome_of(played(None)).scored) == (None, 0)
    group = played(1, -1, 1)
    scores = (0.25, 0.75, None)
    trajectories = tuple(
        one.model_copy(
            update={
                "outcome": Outcome(value=None, score=score)
                if score
                else Outcome(value=None, error=BROKEN)
            }
        )
        for one, score in zip(group.played.trajectories, scores, strict=True)
    )
    scored = group.model_copy(
        update={"played": group.played.model_copy(update={"trajectories": trajectories})}
    )
    found = outcome_of(scored, controller="none")
    assert (found.score, found.scored, found.measured) == (0.5, 2, 0)


def test_a_group_that_spans_versions_says_the_oldest_and_the_newest() -> None:
    old, new = played(1, -1, version=4), played(1, -1, version=6)
    trajectories = (old.played.trajectories[0], new.played.trajectories[1])
    mixed = old.model_copy(
        update={"played": old.played.model_copy(update={"trajectories": trajectories})}
    )
    outcome = outcome_of(mixed)
    assert (outcome.policy_version, outcome.newest_version) == (4, 6)


def test_a_group_without_a_token_has_the_version_it_was_offered_at() -> None:
    group = played(None)
    (trajectory,) = group.played.trajectories
    empty = trajectory.model_copy(update={"segments": (), "steps": ()})
    silent = group.model_copy(
        update={
            "played": group.played.model_copy(update={"trajectories": (empty,)}),
            "votes": (None,),
        }
    )
    outcome = outcome_of(silent)
    assert (outcome.policy_version, outcome.newest_version) == (OFFER.versions[0],) * 2


def test_the_notes_are_every_measured_rollout_of_a_training_group() -> None:
    found = outcome_of(played(1, -1, None))
    assert [note.success for note in found.notes] == [True, False]
    assert found.notes[1].judged[0][1] == ("good", "bad")
    assert outcome_of(played(-1, -1), controller="rlve").notes == ()
    measured = outcome_of(played(-1, -1, purpose="measure_parent", proposal_id="p"))
    assert measured.notes == ()
