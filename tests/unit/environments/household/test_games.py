"""Generated games: solvable, deterministic, under their options; the planner is right; the expert is good."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.household import family as household
from environments.household.catalogue import GOAL_TYPES, OPENABLE
from environments.household.episode import Episode
from environments.household.generator import generate
from environments.household.params import (
    GeneratorOptions,
    HouseOptions,
    PlayOptions,
    params_of,
    world_of,
)
from environments.household.planner import Expert, _bound, plan
from environments.household.wording import announce
from environments.household.world import State, World
from tests.unit.environments.household.announcements import read_announcement
from triforge.errors import InputError

FAMILY = household.FAMILY
GAMES = generate(count=120, seed=2, options={})
SMALL = [
    world
    for goal in GOAL_TYPES
    for world in generate(
        count=3,
        seed=4,
        options={
            "goals": [goal],
            "receptacles": [3, 4],
            "distractors": [0, 1],
            "closed": 0.5,
            "lamps": 0.0,
        },
    )
]
LARGE = generate(
    count=12, seed=9, options={"receptacles": [12, 16], "per_kind": 3, "horizon": 60, "hint": 0.5}
)


def shortest(world: World) -> int | None:
    """Length of a shortest plan by plain breadth-first search over every admissible command."""
    frontier: deque[tuple[State, int]] = deque([(world.start(), 0)])
    seen = {world.start()}
    while frontier:
        state, steps = frontier.popleft()
        if world.won(state):
            return steps
        for command in world.admissible(state):
            after = world.apply(state, command)
            if after is not None and after not in seen:
                seen.add(after)
                frontier.append((after, steps + 1))
    return None


@pytest.mark.parametrize("world", SMALL, ids=lambda w: f"{w.goal.type}-{w.goal.object}")
def test_the_planner_finds_a_plan_as_short_as_exhaustive_search(world: World) -> None:
    steps = plan(world)
    assert steps is not None
    assert len(steps) == shortest(world)


def test_the_planner_never_overestimates_what_is_left() -> None:
    for world in (*GAMES, *LARGE):
        steps, state = plan(world) or [], world.start()
        for done, command in enumerate(steps):
            assert _bound(world, world.goal, state) <= len(steps) - done, (announce(world), done)
            following = world.apply(state, command)
            assert following is not None
            state = following


@pytest.mark.parametrize("wording", ["terse", "alfworld"])
def test_plans_replay_to_success_in_both_wordings(wording: str) -> None:
    for world in (*GAMES, *LARGE):
        episode = Episode(world, PlayOptions.model_validate({"wording": wording}), announce(world))
        steps = plan(world) or []
        results = [episode.play(episode.say(command)) for command in steps]
        assert [r.success for r in results] == [False] * (len(steps) - 1) + [True], announce(world)


def test_a_game_without_the_needed_things_has_no_plan() -> None:
    world = next(w for w in GAMES if w.goal.type == "two")
    one = world_of_without(world, f"{world.goal.object} 2")
    assert plan(one) is None


def world_of_without(world: World, name: str) -> World:
    kept = [i for i, thing in enumerate(world.objects) if thing.name != name]
    return World(
        receptacles=world.receptacles,
        objects=tuple(world.objects[i] for i in kept),
        where=tuple(world.where[i] for i in kept),
        opened=world.opened,
        goal=world.goal,
        horizon=world.horizon,
    )


@pytest.mark.parametrize("wording", ["terse", "alfworld"])
def test_the_expert_wins_at_least_95_percent_of_default_games(wording: str) -> None:
    options = PlayOptions.model_validate({"wording": wording})
    wins = 0
    for world in GAMES:
        episode, expert = Episode(world, options, announce(world)), Expert(world)
        while not episode.done:
            command = expert.act(episode.state)
            assert command is not None
            assert episode.play(episode.say(command)).label == 1
            expert.see(episode.state)
        wins += episode.success
    assert wins >= 0.95 * len(GAMES)


def test_the_expert_does_not_know_where_things_are() -> None:
    def first_moves(place: str) -> list[str]:
        params: dict[str, Any] = {
            "receptacles": {"fridge 1": "closed", "cabinet 1": "closed", "shelf 1": "open"},
            "objects": {"mug 1": place},
            "goal": {"type": "place", "object": "mug", "target": "shelf"},
        }
        world = world_of(params)
        episode = Episode(world, PlayOptions(wording="terse"), announce(world))
        return sorted(episode.sensible())

    assert first_moves("fridge 1") == first_moves("cabinet 1")
    assert first_moves("fridge 1") == ["go cabinet", "go fridge", "go shelf"]


def test_with_a_hint_the_expert_goes_straight_there() -> None:
    params: dict[str, Any] = {
        "receptacles": {"fridge 1": "closed", "cabinet 1": "closed", "shelf 1": "open"},
        "objects": {"mug 1": "fridge 1"},
        "goal": {"type": "place", "object": "mug", "target": "shelf"},
        "hint": True,
    }
    world = world_of(params)
    assert announce(world) == "put some mug in shelf hint mug in fridge"
    episode = Episode(world, PlayOptions(wording="terse"), announce(world))
    assert episode.sensible() == {"go fridge"}


@given(st.integers(0, 10_000), st.integers(0, 9))
def test_a_game_depends_on_seed_and_index_only(seed: int, index: int) -> None:
    longer = generate(count=10, seed=seed, options={})
    shorter = generate(count=index + 1, seed=seed, options={})
    assert longer[: index + 1] == shorter


def test_params_survive_json_with_its_keys_in_any_order() -> None:
    for world in (*GAMES[:30], *LARGE):
        params = params_of(world)
        turned: dict[str, Any] = dict(reversed(params.items()))
        turned["receptacles"] = dict(reversed(params["receptacles"].items()))  # type: ignore[union-attr]
        turned["objects"] = dict(reversed(params["objects"].items()))  # type: ignore[union-attr]
        assert world_of(turned) == world


def test_options_change_the_games() -> None:
    closed = generate(
        count=40,
        seed=1,
        options={
            "receptacles": [6, 7],
            "distractors": [1, 1],
            "goals": ["place"],
            "objects": ["mug", "apple", "plate"],
            "kinds": ["fridge", "shelf", "cabinet", "countertop", "drawer", "safe", "desk"],
            "openable_share": 1.0,
            "lamps": 0.0,
            "hint": 1.0,
            "horizon": 17,
        },
    )
    for world in closed:
        assert len(world.receptacles) in (6, 7)
        assert len(world.objects) == 2
        assert world.goal.type == "place"
        assert {thing.kind for thing in world.objects} <= {"mug", "apple", "plate"}
        assert world.opened == 0
        assert (world.hint, world.horizon) == (True, 17)
        assert sum(thing.kind in OPENABLE for thing in world.receptacles) == 4  # all there are
    opened = generate(count=10, seed=1, options={"closed": 0.0})
    assert all(world.opened == world.openable for world in opened)
    pairs = generate(count=20, seed=1, options={"duplicates": 1.0, "distractors": [2, 2]})
    assert all(any(thing.number == 2 for thing in world.objects) for world in pairs)
    single = generate(count=20, seed=1, options={"duplicates": 0.0, "goals": ["place"]})
    assert any(all(thing.number == 1 for thing in world.objects) for world in single)
    repeated = generate(count=10, seed=1, options={"per_kind": 4, "kinds": ["shelf", "desk"]})
    assert all(len({r.kind for r in world.receptacles}) == 2 for world in repeated)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"receptacle": [1, 2]}, "receptacle"),
        ({"receptacles": [5, 3]}, "receptacles.*must not be above"),
        ({"receptacles": [1, 2, 3]}, "receptacles"),
        ({"closed": 1.5}, "closed"),
        ({"goals": ["win"]}, "goals"),
        ({"objects": ["unicorn"]}, "unicorn.*known are mug"),
        ({"kinds": ["garage"]}, "garage.*known are cabinet"),
        ({"goals": ["heat"], "objects": ["pillow"]}, "no solvable game"),
        ({"horizon": 2}, "no solvable game"),
        ({"receptacles": [1, 1], "goals": ["place"]}, "no solvable game"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.generate(count=1, seed=0, options=options)


GOOD: dict[str, Any] = {
    "receptacles": {"fridge 1": "closed", "shelf 1": "open"},
    "objects": {"apple 1": "fridge 1"},
    "goal": {"type": "place", "object": "apple", "target": "shelf"},
    "horizon": 9,
    "hint": False,
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": "red"}, "field colour"),
        ({"receptacles": {}}, "field receptacles"),
        ({"receptacles": {"shelf 1": "closed", "fridge 1": "closed"}}, "shelf 1: only cabinet"),
        ({"receptacles": {"shelf": "open"}}, "receptacles.shelf: a name is"),
        ({"receptacles": {"moon 1": "open"}}, "receptacles.moon 1: unknown kind"),
        ({"receptacles": {"fridge 1": "ajar"}}, r"receptacles.fridge 1.*given 'ajar'"),
        ({"objects": {"apple 1": "moon 1"}}, "objects.apple 1: there is no receptacle 'moon 1'"),
        ({"objects": {"unicorn 1": "shelf 1"}}, "objects.unicorn 1: unknown kind"),
        ({"goal": {"type": "place", "object": "apple"}}, "field goal.target"),
        ({"goal": {"type": "eat", "object": "apple", "target": "shelf"}}, "field goal.type"),
        ({"goal": {"type": "place", "object": "mug", "target": "shelf"}}, "field goal.object"),
        ({"goal": {"type": "two", "object": "apple", "target": "shelf"}}, "needed 2"),
        ({"goal": {"type": "place", "object": "apple", "target": "desk"}}, "field goal.target"),
        ({"goal": {"type": "clean", "object": "apple", "target": "shelf"}}, "needs a 'sinkbasin'"),
        ({"goal": {"type": "look", "object": "apple", "target": "shelf"}}, "desklamp"),
        ({"goal": {"type": "place", "object": "apple", "target": "fridge"}}, "already holds"),
        ({"horizon": 4}, "field horizon"),
        ({"horizon": "9"}, "field horizon"),
    ],
)
def test_a_bad_task_is_refused_and_the_field_is_named(
    change: dict[str, Any], sentence: str
) -> None:
    assert FAMILY.validate(GOOD).instruction == "put some apple in shelf"
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**GOOD, **change})


def test_all_bad_fields_are_named_at_once() -> None:
    bad = {**GOOD, "objects": {"apple 1": "x", "mug 1": "y"}}
    with pytest.raises(InputError) as caught:
        FAMILY.validate(bad)
    assert len(caught.value.problems) == 2


def test_every_instruction_reads_back_to_its_goal() -> None:
    for world in GAMES:
        assert read_announcement(f"{announce(world)}.") == (world.goal, None)
    for world in LARGE:
        announced = read_announcement(announce(world))
        assert announced is not None
        goal, place = announced
        assert goal == world.goal
        assert (place is not None) == world.hint


def test_the_page_lists_every_option_with_its_default() -> None:
    page = (Path(household.__file__).parent / "README.md").read_text()
    simple, house = page.split('With `rules = "alfworld"`:')
    words: dict[Any, str] = {True: "true", None: "none"}
    listed = defaults_in(simple)
    for name, info in {**GeneratorOptions.model_fields, **PlayOptions.model_fields}.items():
        default = info.get_default(call_default_factory=True)
        if name in ("goals", "objects", "kinds"):
            assert listed[name].startswith("all")
        elif default is True or default is None:
            assert listed[name] == words[default], name
        else:
            assert listed[name] == str(default), name
    listed |= defaults_in(house)
    for name, info in HouseOptions.model_fields.items():
        default = info.get_default(call_default_factory=True)
        assert listed[name] in ("as above", "all four", "simple", str(default)), name


def defaults_in(page: str) -> dict[str, str]:
    """Return the second column of every table, by the names in the first."""
    rows = [[c.strip() for c in line.split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {name.strip(" `"): row[2].strip("`") for row in rows for name in row[1].split(",")}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from(["", "mug 1", "open", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["", "mug 1", "shelf 1", "type", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from([*GOOD, "x"]), JSON)
def test_any_other_json_is_refused_or_playable(name: str, value: Any) -> None:
    try:
        draft = FAMILY.validate({**GOOD, name: value})
    except InputError:
        return
    assert plan(world_of(draft.params))
