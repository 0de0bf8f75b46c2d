"""The ladder of a game: each step is proved, is easier, teaches what it names, and leads back to the whole task."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from environments.household.careless import SMALL as SMALL_ROOMS
from environments.household.catalogue import GOAL_TYPES
from environments.household.episode import Episode
from environments.household.family import FAMILY
from environments.household.generator import generate
from environments.household.ladder import MAX_RUNGS, WHOLE, harder, rungs
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import _bound, plan
from environments.household.rewriting import difficulty
from environments.household.wording import announce
from environments.household.world import TREATMENTS, World
from tests.unit.environments.household.test_games import SMALL, shortest
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.types import Params

HARD: Params = SMALL_ROOMS | {
    "receptacles": [7, 8],
    "distractors": [2, 4],
    "goals": ["heat", "cool", "clean", "two"],
    "commands": [7, 12],
    "horizon": 24,
}
ROOM: Params = {
    "receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
    "objects": {"mug 1": "fridge 1", "apple 1": "shelf 1"},
    "goal": {"type": "clean", "object": "mug", "target": "shelf"},
    "horizon": 20,
    "hint": False,
}
FETCHED: list[JsonValue] = ["go fridge 1", "open fridge 1", "take mug 1 fridge 1"]

games = st.builds(
    lambda goal, seed, rules: generate(
        count=1, seed=seed, options={"goals": [goal], "rules": rules}
    )[0],
    st.sampled_from(GOAL_TYPES),
    st.integers(0, 10_000),
    st.sampled_from(["simple", "alfworld"]),
)


def length(world: World) -> int:
    steps = plan(world)
    assert steps is not None
    return len(steps)


def reached(world: World) -> dict[str, int | None]:
    """The sub-goals of a game and whether the agent finds them reached."""
    options: Params = {} if world.catalogue.strict else {"wording": "terse"}
    found = FAMILY.sub_goals(task_of(FAMILY, params_of(world)), [], options)
    return {goal.name: goal.reached for goal in found}


@given(games)
@settings(max_examples=40, deadline=None)
def test_every_step_is_proved_is_easier_and_asks_what_the_whole_task_asks(world: World) -> None:
    task = task_of(FAMILY, params_of(world))
    whole, *steps = rungs(world)
    assert (whole.name, whole.world) == (WHOLE, world)
    assert 0 < len(steps) < MAX_RUNGS
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        draft = FAMILY.validate(params_of(step.world))
        assert [c for c in FAMILY.check_rewrite(task, draft) if not c.passed] == [], step.name
        assert world_of(draft.params) == step.world
        assert draft.kind == task.kind
        assert FAMILY.asks(draft, {}) == FAMILY.asks(FAMILY.validate(task.params), {})
        easier = difficulty(step.world, length(step.world))
        assert easier < difficulty(world, length(world)), step.name


@given(games, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_way_back_gets_harder_step_by_step_and_ends_at_the_whole_task(
    world: World, draw: Random
) -> None:
    task = task_of(FAMILY, params_of(draw.choice(rungs(world)[1:]).world))
    for _ in range(MAX_RUNGS):
        if task.params == params_of(world):
            return
        offered = FAMILY.rewrite_menu(task, "harder").combinations
        here = world_of(task.params)
        assert {answer["room"] for answer in offered} == {step.name for step in harder(here)}
        draft = FAMILY.apply_rewrite(task, draw.choice(offered))
        assert [check for check in FAMILY.check_rewrite(task, draft) if not check.passed] == []
        after = world_of(draft.params)
        assert difficulty(after, length(after)) > difficulty(here, length(here))
        task = task_of(FAMILY, draft.params)
    raise AssertionError(f"not at the whole task after {MAX_RUNGS} steps")


@given(games)
@settings(max_examples=20, deadline=None)
def test_a_step_has_reached_what_it_starts_after_and_leaves_where_it_stops(world: World) -> None:
    for step in rungs(world):
        held = reached(step.world)
        start, _, stop = step.name.partition("stop at ")
        start = start.removesuffix(" and ")
        if start.startswith("start after "):
            assert held[start.removeprefix("start after ")] == 0
        if start.startswith("start before "):
            name = start.removeprefix("start before ")
            assert held[name] is None
            task = task_of(FAMILY, params_of(replace(step.world, goal=world.goal)))
            options: Params = {} if world.catalogue.strict else {"wording": "terse"}
            first = (FAMILY.gold(task, options) or [""])[0]
            found = FAMILY.sub_goals(task, [first], options)
            assert {goal.name: goal.reached for goal in found}[name] == 1
        if stop:
            assert list(held)[-1] == stop
            assert announce(step.world).startswith(stop)


def test_hard_tasks_get_the_treatment_alone_and_each_start_before_it() -> None:
    lengths: dict[str, list[int]] = {}
    worlds = generate(count=40, seed=961, options=HARD)
    treated = [world for world in worlds if world.goal.type in TREATMENTS]
    for world in treated:
        goal = world.goal
        for step in rungs(world):
            name = step.name.replace(goal.object, "it").replace(goal.type, "treat")
            lengths.setdefault(name.split(" to ")[0], []).append(length(step.world))
    for name, most in (
        ("stop at treat it", 6),
        ("start after take it", 5),
        ("start before treat it", 4),
        ("start after take it and stop at treat it", 2),
        ("start before treat it and stop at treat it", 1),
        ("remind of treat it", 12),
    ):
        assert len(lengths[name]) >= 0.9 * len(treated), name
        assert max(lengths[name]) <= most, name


@pytest.mark.parametrize("world", SMALL, ids=lambda w: f"{w.goal.type}-{w.goal.object}")
def test_the_planner_is_right_on_every_step(world: World) -> None:
    for step in rungs(world):
        assert length(step.world) == shortest(step.world), step.name
        state = step.world.start()
        for done, command in enumerate(plan(step.world) or []):
            left = length(step.world) - done
            assert _bound(step.world, step.world.goal, state) <= left, (step.name, done)
            state = step.world.apply(state, command) or state


@pytest.mark.parametrize(
    ("wording", "shown"),
    [
        ("terse", "go fridge closed open fridge mug take mug ok"),
        (
            "alfworld",
            "> take mug 1 from fridge 1\nYou pick up the mug 1 from the fridge 1.",
        ),
    ],
)
async def test_an_episode_begins_with_what_was_played(wording: str, shown: str) -> None:
    task = task_of(FAMILY, {**ROOM, "until": "clean", "played": FETCHED})
    options: Params = {"wording": wording, "labels": "progress"}
    assert task.instruction == "clean mug"
    environment = FAMILY.make(options)
    reset = await environment.reset(task, seed=0)
    assert reset.observation.text.endswith(shown)
    assert "clean mug" in reset.observation.text
    results = [await environment.step(text) for text in FAMILY.gold(task, options) or ()]
    assert [(result.label, result.done) for result in results] == [(1, False), (1, True)]
    assert results[-1].success


def test_the_expert_knows_what_was_seen_before_the_start() -> None:
    world = world_of({**ROOM, "played": FETCHED[:2]})
    episode = Episode(world, PlayOptions(wording="terse"), announce(world))
    assert episode.sensible() == {"take mug"}


def test_a_reminder_names_treatment_and_place_and_a_game_without_help_is_stored_as_before() -> None:
    text = FAMILY.validate({**ROOM, "remind": True}).instruction
    assert text == "put clean mug in shelf hint clean mug in sinkbasin"
    assert params_of(world_of(ROOM)) == ROOM


def test_a_start_of_a_users_own_finds_the_way_back() -> None:
    """A recorded success need not follow the shortest plan."""
    played = ["go shelf 1", *FETCHED, "go shelf 1", "go sinkbasin 1"]
    task = task_of(FAMILY, {**ROOM, "played": played})
    (answer,) = FAMILY.rewrite_menu(task, "harder").combinations
    assert answer["room"] == "start after take mug"
    draft = FAMILY.apply_rewrite(task, answer)
    assert all(check.passed for check in FAMILY.check_rewrite(task, draft))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"played": ["go sofa 1"]}, "played.0"),
        ({"played": [*FETCHED, "put mug 1 shelf 1"]}, "played.3"),
        ({"until": "heat"}, "until"),
        ({"until": "look"}, "until"),
        ({"until": "take", "played": FETCHED}, "already holds"),
        (
            {"goal": {"type": "place", "object": "mug", "target": "shelf"}, "remind": True},
            "remind",
        ),
    ],
)
def test_help_that_does_not_fit_is_refused(change: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError, match=names):
        FAMILY.validate({**ROOM, **change})


def test_under_alfworlds_rules_only_the_start_changes() -> None:
    (world,) = generate(count=1, seed=3, options={"rules": "alfworld"})
    assert len(rungs(world)) > 3
    for step in rungs(world):
        assert replace(step.world, played=()) == world
    with pytest.raises(InputError, match="until: unknown"):
        FAMILY.validate({**params_of(world), "until": "take"})
