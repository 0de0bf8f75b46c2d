"""Rewards and scores of an episode, and the threshold from which they are a success."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.unit.rollout.counting import Count, Parrot, play
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.protocols import StepResult
from triforge.testing.check_environment import check_environment
from triforge.testing.fakes import FakeEnvironment, FakeFamily
from triforge.types import Outcome, Params, Trajectory

Given = dict[str, object]


class Scored(Count):
    """Three steps; each answers with what it is given, and says nothing of success."""

    def __init__(self, *given: Given) -> None:
        super().__init__(goal=len(given))
        self.given = given

    async def step(self, response: str) -> StepResult:
        found = await super().step(response)
        fields: Given = {"success": None} | self.given[self.n - 1]
        return StepResult(
            observation=found.observation,
            action=found.action,
            action_valid=True,
            done=found.done,
            **fields,  # type: ignore[arg-type]
        )


@dataclass
class Family(FakeFamily):
    """Makes one such environment."""

    given: tuple[Given, ...] = ()
    success_at: float | None = None
    never_blocks: bool = field(default=True)

    def make(self, options: Params) -> Scored:  # type: ignore[override]
        return Scored(*self.given)


REWARDS: tuple[Given, ...] = ({"reward": 0.25}, {}, {"reward": 0.5})
SCORE: tuple[Given, ...] = ({}, {"score": 0.7})


async def played(given: tuple[Given, ...], at: float | None, **limits: object) -> Trajectory:
    environment = fresh_environment(Family(given=given, success_at=at), {})
    return await play(environment, Parrot(), **limits)


@pytest.mark.parametrize(
    ("given", "at", "outcome"),
    [
        (REWARDS, None, Outcome(value=None, score=0.75)),
        (REWARDS, 0.75, Outcome(value=1, score=0.75)),
        (REWARDS, 0.8, Outcome(value=-1, score=0.75)),
        (SCORE, 0.7, Outcome(value=1, score=0.7)),
        (({"reward": 0.1}, {"reward": 0.1, "score": 2.0}), 1.0, Outcome(value=1, score=2.0)),
        (({"reward": 5.0, "success": False},), 1.0, Outcome(value=-1, score=5.0)),
        (({"success": True},), 0.5, Outcome(value=1)),
    ],
)
async def test_a_score_is_what_the_steps_earned_and_a_success_from_the_threshold_on(
    given: tuple[Given, ...], at: float | None, outcome: Outcome
) -> None:
    trajectory = await played(given, at)
    assert trajectory.outcome == outcome
    assert trajectory.measured
    assert [s.reward for s in trajectory.steps] == [one.get("reward") for one in given]


@pytest.mark.parametrize(
    ("given", "at", "outcome"),
    [
        (REWARDS, None, Outcome(value=None, score=0.25)),
        (REWARDS, 0.25, Outcome(value=1, score=0.25)),
        (REWARDS, 0.5, Outcome(value=-1, score=0.25)),
        (SCORE, None, Outcome(value=None, score=0.0)),
        (SCORE, 0.1, Outcome(value=-1)),
    ],
)
async def test_an_episode_cut_off_has_what_its_steps_earned(
    given: tuple[Given, ...], at: float | None, outcome: Outcome
) -> None:
    assert (await played(given, at, max_steps=1)).outcome == outcome


def test_a_trajectory_without_a_score_has_1_or_0_of_its_success() -> None:
    fields = {"id": "i", "group_id": "g", "index": 0, "task_id": "t", "task_version": 0}
    for value, score in ((1, 1.0), (-1, 0.0), (None, None)):
        given = Trajectory.model_validate(
            {**fields, "instruction": "", "steps": (), "segments": (), "outcome": {"value": value}}
        )
        assert (given.score, given.measured) == (score, score is not None)


async def test_the_run_states_another_threshold_than_the_family() -> None:
    family = Family(given=SCORE, success_at=0.9)
    for options, value in (({}, -1), ({"success_at": 0.5}, 1)):
        trajectory = await play(fresh_environment(family, options), Parrot())  # type: ignore[arg-type]
        assert trajectory.outcome.value == value


class Closer(FakeEnvironment):
    """Counts, and gives rewards for coming closer in place of success."""

    def __init__(self, change: Callable[[StepResult], StepResult]) -> None:
        super().__init__()
        self.change = change

    async def step(self, response: str) -> StepResult:
        found = await super().step(response)
        return self.change(replace(found, success=None, reward=float(found.label == 1)))


def closer(change: Callable[[StepResult], StepResult], at: float | None) -> FakeFamily:
    family = FakeFamily()
    family.make = lambda options: Closer(change)  # type: ignore[method-assign]
    family.success_at = at  # type: ignore[attr-defined]
    return family


@pytest.mark.parametrize("at", [None, 1.0])
async def test_a_scored_family_keeps_the_contract(at: float | None) -> None:
    family = closer(lambda found: found, at)
    results = await check_environment(family, max_steps=30)
    failed = {r.name for r in results if not r.passed}
    assert failed <= {"unknown_fields_are_refused"}  # of `make`, which reads no options here


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: replace(found, reward=math.inf), "reward: the environment gave float inf"),
        (lambda found: replace(found, score=1.0), "score: given before the episode is done"),
        (lambda found: replace(found, reward=None), "without success, score or reward"),
    ],
)
async def test_the_contract_says_what_is_no_score(
    change: Callable[[StepResult], StepResult], sentence: str
) -> None:
    results = await check_environment(closer(change, None), seed=1, max_steps=30)
    (found,) = [r for r in results if r.name == "scores_are_sound"]
    assert not found.passed
    assert sentence in found.detail


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (({},), "without success, score or reward"),
        (({"score": 1.0}, {}), "given before the episode is done"),
        (
            ({"reward": math.nan},),
            "step 0: reward: the environment gave float nan, expected a number",
        ),
        (({"score": "high"},), "step 0: score: the environment gave str 'high', expected a number"),
        (({"score": "1.0"},), "step 0: score: the environment gave str '1.0'"),
        (
            ({"reward": 1e308},),
            "step 0: reward: the environment gave float 1e+308, expected a number from",
        ),
        (({"score": -1e154},), "step 0: score: the environment gave float -1e+154"),
        (({"reward": 0.0, "local": 10**400},), "step 0: local: the environment gave int 1000"),
        (({"score": 1.0, "share": "1"},), "step 0: share: the environment gave str"),
        (
            ({"score": 1.0, "readings": {"v": 1e13}},),
            "step 0: readings.v: the environment gave float",
        ),
        (({"score": 1.0, "readings": {"v": {}}},), "step 0: readings.v: the environment gave dict"),
    ],
)
async def test_what_cannot_be_a_score_is_refused_as_malformed(
    given: tuple[Given, ...], sentence: str
) -> None:
    outcome = (await played(given, None, retries=0)).outcome
    assert outcome.error is not None
    assert (outcome.value, outcome.score, outcome.error.kind) == (
        None,
        None,
        "malformed_observation",
    )
    assert sentence in outcome.error.detail
