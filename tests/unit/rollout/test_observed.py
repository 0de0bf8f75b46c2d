"""Results of an environment can be stored: half characters are replaced, other types are a failure with a kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.rollout.counting import TASK, Count, Parrot, group, play
from triforge.errors import EnvError
from triforge.rollout.episode import run_group
from triforge.rollout.observed import whole
from triforge.rollout.protocols import Observation, Reset, StepResult


class Shows(Count):
    """Answers with other values than `Count`: `changes` in each step, `shown` in each observation."""

    def __init__(self, *, shown: dict[str, Any] | None = None, **changes: Any) -> None:
        super().__init__()
        self.shown, self.changes = shown or {}, changes

    async def reset(self, task: Any, *, seed: int) -> Reset:
        first = await super().reset(task, seed=seed)
        system = self.changes.get("system", first.system)
        return Reset(observation=replace(first.observation, **self.shown), system=system)

    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        seen = replace(result.observation, **self.shown)
        changes = {name: value for name, value in self.changes.items() if name != "system"}
        return replace(result, **{"observation": seen, **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cup 😀 ﬁ\x00", "a cup 😀 ﬁ\x00"),
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 cut", "\ufffd cut"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d\ud83d\ude00", "\ufffd\ufffd😀"),
    ],
)
def test_half_a_character_is_shown_as_one_that_stands_for_it(text: str, expected: str) -> None:
    assert whole(text) == expected


async def test_half_a_character_keeps_the_episode_measured_and_storable() -> None:
    half = "You see \ud83d"
    shown = {"text": half, "admissible": (half, "up")}
    made: list[Shows] = []

    def make() -> Shows:
        made.append(Shows(shown=shown, system=half, action=half))
        return made[-1]

    policy = Parrot()
    played = await run_group(make, policy, TASK, group(rollouts=2, admissible_only=True))
    for trajectory in played.trajectories:
        assert trajectory.outcome.value == 1
        assert {step.observation for step in trajectory.steps} == {"You see \ufffd"}
        assert trajectory.steps[0].action == trajectory.system == "You see \ufffd"
    assert len(made) == 2
    assert "\ufffd" in played.model_dump_json()
    assert all(request.model_dump_json() for request in policy.requests)


async def test_half_a_character_in_an_environments_error_is_data_too() -> None:
    class Broken(Count):
        async def step(self, response: str) -> StepResult:
            raise EnvError("cannot show \ud83d")

    trajectory = await play(Broken(), Parrot())
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.detail == "cannot show \ufffd"
    assert trajectory.model_dump_json()


@pytest.mark.parametrize(
    ("environment", "phrase"),
    [
        (Shows(shown={"text": b"bytes"}), "reset: text: the environment gave bytes, expected text"),
        (Shows(shown={"text": None}), "gave NoneType, expected text"),
        (Shows(shown={"admissible": None}), "reset: admissible: the environment gave NoneType"),
        (Shows(shown={"admissible": ("up", 3)}), "reset: admissible: the environment gave int"),
        (Shows(shown={"images": ("no bytes",)}), "reset: images: the environment gave str"),
        (Shows(system=3), "reset: system: the environment gave int"),
        (Shows(action=("go", 1)), "step 0: action: the environment gave tuple"),
        (Shows(observation="a text"), "step 0: observation: the environment gave str"),
        (
            Shows(readings=None),
            "step 0: readings: the environment gave NoneType, expected a mapping",
        ),
        (Shows(label=7), "label"),
        (Shows(share=2.0, done=True), "share"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_of_another_type_ends_the_episode_as_a_malformed_observation(
    environment: Shows, phrase: str
) -> None:
    trajectory = await play(environment, Parrot())
    assert trajectory.outcome.value is None
    error = trajectory.outcome.error
    assert error is not None
    assert (error.kind, error.retryable) == ("malformed_observation", False)
    assert phrase in error.detail
    assert environment.closed == 1


async def test_a_reading_that_the_environment_does_not_have_is_left_out() -> None:
    trajectory = await play(Shows(readings={"speed": 0, "distance": None}), Parrot())
    assert {tuple(step.readings.items()) for step in trajectory.steps} == {(("speed", 0.0),)}


@pytest.mark.parametrize("call", ["reset", "step"])
async def test_an_answer_that_is_none_at_all_is_malformed(call: str) -> None:
    class Silent(Count):
        async def reset(self, task: Any, *, seed: int) -> Any:
            return None if call == "reset" else await super().reset(task, seed=seed)

        async def step(self, response: str) -> Any:
            return Observation(text="no result")

    trajectory = await play(Silent(), Parrot())
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "malformed_observation"
