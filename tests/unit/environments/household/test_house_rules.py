"""Games under ALFWorld's rules: places of objects, sentences, solvability, refusals.

That the sentences are ALFWorld's is held by tests/contract/alfworld, against recordings of the real engine.
"""

from __future__ import annotations

from typing import Any

import pytest

from environments.household.catalogue import (
    ALFWORLD,
    DEVICE,
    GOAL_TYPES,
    OPENABLE,
    ROOM_KINDS,
    ROOMS,
)
from environments.household.episode import Episode
from environments.household.family import FAMILY
from environments.household.generator import generate
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import Expert, plan
from environments.household.wording import announce
from scripts.real_alfworld.play import MADE
from tests.unit.environments.household.announcements import read_announcement
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.testing import check_environment, require

GAMES = generate(count=90, seed=3, options={"rules": "alfworld"})
ROOM: dict[str, Any] = {
    "rules": "alfworld",
    "receptacles": {
        "fridge 1": "closed",
        "microwave 1": "closed",
        "shelf 1": "open",
        "shelf 2": "open",
        "sinkbasin 1": "open",
        "countertop 1": "open",
        "desk 1": "open",
    },
    "objects": {
        "apple 1": "fridge 1",
        "apple 2": "countertop 1",
        "knife 1": "countertop 1",
        "mug 1": "countertop 1",
        "soapbar 1": "sinkbasin 1",
        "desklamp 1": "desk 1",
        "pen 1": "desk 1",
    },
    "goal": {"type": "clean", "object": "apple", "target": "fridge"},
    "phrase": 1,
    "horizon": 60,
}


def play(*commands: str, **more: Any) -> list[Any]:
    world = world_of({**ROOM, **more})
    episode = Episode(world, PlayOptions(), announce(world))
    episode.start()
    return [episode.play(command) for command in commands]


def texts(*commands: str, **more: Any) -> list[str]:
    return [result.observation.text for result in play(*commands, **more)]


def test_things_are_listed_by_the_ids_behind_their_names() -> None:
    world = world_of(ROOM)
    first = Episode(world, PlayOptions(), announce(world)).start().observation
    assert first.text == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a desk 1, a fridge 1, a microwave 1, a shelf 2, a shelf 1, and a sinkbasin 1.\n\n"
        "Your task is to: clean some apple and put it in fridge."
    )
    assert first.admissible[-3:] == ("help", "inventory", "look")
    assert list(first.admissible) == sorted(first.admissible)


def test_what_was_done_to_a_thing_reads_when_it_is_examined() -> None:
    commands = ["go to countertop 1", "take apple 2 from countertop 1", "examine apple 2"]
    clean = ["go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "examine apple 2"]
    warm = ["go to microwave 1", "heat apple 2 with microwave 1", "examine apple 2"]
    cool = ["go to fridge 1", "cool apple 2 with fridge 1", "examine apple 2"]
    answers = texts(*commands, *cool, *warm, *clean, *cool)
    assert answers[2] == "There's nothing special about apple 2."
    assert answers[5] == "This is a cold apple 2."
    assert answers[8] == "This is a hot apple 2."
    assert answers[11] == "This is a hot and clean apple 2."
    assert answers[14] == "This is a cool and clean apple 2."
    mug = texts(
        "go to countertop 1", "inventory", "take mug 1 from countertop 1", "examine mug 1", "look"
    )
    assert mug[1:2] + mug[3:] == [
        "You are not carrying anything.",
        "This is a normal mug 1. In it, you see nothing.",
        "You are facing the countertop 1. Next to it, you see nothing.",
    ]


def test_a_knife_cuts_what_lies_here_even_behind_a_closed_door() -> None:
    commands = [
        "go to countertop 1",
        "take knife 1 from countertop 1",
        "slice apple 2 with knife 1",
    ]
    results = play(
        *commands,
        "go to fridge 1",
        "slice apple 1 with knife 1",
        "go to countertop 1",
        "move knife 1 to countertop 1",
        "take apple 2 from countertop 1",
        "examine apple 2",
    )
    assert [result.action_valid for result in results] == [True] * 9
    assert results[2].observation.text == "You sliced the apple 2 with the knife 1."
    assert results[8].observation.text == "This is a sliced apple 2."
    assert not any(
        result.action_valid for result in play("go to fridge 1", "slice apple 1 with knife 1")[1:]
    )


def test_blanks_between_words_count_blanks_around_and_case_do_not() -> None:
    results = play("go to  desk 1", "go to\tdesk 1", "go\nto desk 1", " Go to desk 1\n")
    assert [result.action_valid for result in results] == [False, False, False, True]
    assert results[0].observation.text == "Nothing happens."
    simple = generate(count=1, seed=1, options={})[0]
    episode = Episode(simple, PlayOptions(), announce(simple))
    assert episode.play(f"go  to\t{simple.receptacles[0].name}").action_valid


LAMPS: dict[str, Any] = {name: MADE[name] for name in ("receptacles", "objects", "goal")}


def test_a_room_may_have_a_toaster_a_plunger_a_laptop_on_a_sidetable_and_a_floorlamp() -> None:
    draft = FAMILY.validate({**ROOM, **LAMPS})
    assert draft.instruction == "examine the laptop with the floorlamp"
    world = world_of(draft.params)
    assert read_announcement(draft.instruction, world) == (world.goal, None)
    assert params_of(world) == draft.params
    menu = FAMILY.rewrite_menu(task_of(FAMILY, draft.params), "easier")
    looked = {answer["target"] for answer in menu.combinations if answer["goal"] == "look"}
    assert looked >= {"desklamp"}


def test_only_the_lamp_that_is_asked_for_wins_and_it_shines_behind_a_door() -> None:
    take = ("go to sidetable 1", "take laptop 1 from sidetable 1")
    other = play(*take, "use desklamp 1", **LAMPS)
    assert not any(result.success for result in other)
    results = play(*take, "go to cabinet 2", "use floorlamp 1", **LAMPS)
    assert results[-2].observation.text == "You arrive at cabinet 2. The cabinet 2 is closed."
    assert [result.success for result in results] == [False, False, False, True]
    world = world_of({**ROOM, **LAMPS})
    assert len(plan(world) or []) == 4
    with pytest.raises(InputError, match="look needs a 'desklamp' or 'floorlamp' in the room"):
        FAMILY.validate({**ROOM, "goal": {"type": "look", "object": "mug", "target": "floorlamp"}})


def test_a_lamp_can_be_used_again_and_stays_where_it_is() -> None:
    results = play("go to desk 1", "examine desklamp 1", "use desklamp 1", "use desklamp 1")
    assert [result.observation.text for result in results[1:]] == [
        "Nothing happens.",
        "You turn on the desklamp 1.",
        "You turn on the desklamp 1.",
    ]
    assert "take desklamp 1 from desk 1" not in results[-1].observation.admissible


def test_things_go_only_where_they_belong_and_take_only_what_suits_them() -> None:
    take = ["go to sinkbasin 1", "take soapbar 1 from sinkbasin 1"]
    results = play(*take, "go to shelf 1", "move soapbar 1 to shelf 1")
    assert [result.action_valid for result in results] == [True] * 4
    wrong = play(
        *take,
        "go to desk 1",
        "move soapbar 1 to desk 1",
        "go to fridge 1",
        "cool soapbar 1 with fridge 1",
    )
    assert [result.action_valid for result in wrong] == [True, True, True, False, True, False]
    assert wrong[3].observation.text == "Nothing happens."


def test_the_winning_observation_is_the_last_text() -> None:
    goal: dict[str, Any] = {"type": "place", "object": "apple", "target": "shelf"}
    with pytest.raises(InputError, match="no plan reaches it"):  # apples do not belong on shelves
        FAMILY.validate({**ROOM, "goal": goal})
    goal = {"type": "place", "object": "mug", "target": "shelf"}
    results = play(
        "go to countertop 1",
        "take mug 1 from countertop 1",
        "go to shelf 2",
        "move mug 1 to shelf 2",
        goal=goal,
    )
    assert [result.success for result in results] == [False, False, False, True]
    assert results[-1].observation.text == "You move the mug 1 to the shelf 2."


def test_every_game_is_solved_by_its_plan_and_by_the_expert() -> None:
    for world in GAMES:
        steps = plan(world) or []
        episode = Episode(world, PlayOptions(), announce(world))
        assert [episode.play(episode.say(step)).success for step in steps][-1], announce(world)
        searching, expert = Episode(world, PlayOptions(), announce(world)), Expert(world)
        while not searching.done:
            expert.see(searching.state)
            command = expert.act(searching.state)
            assert command is not None
            assert searching.play(searching.say(command)).label == 1
        assert searching.success, announce(world)


def test_games_cover_all_rooms_goals_and_sentences_and_read_back() -> None:
    assert {world.goal.type for world in GAMES} == set(GOAL_TYPES)
    assert {world.phrase for world in GAMES} == {0, 1}
    for world in GAMES:
        assert read_announcement(announce(world), world) == (world.goal, None)
        assert world_of(params_of(world)) == world
        for obj, place in enumerate(world.where):
            assert world.fits(obj, place)
    for kind in ROOM_KINDS:
        for world in generate(count=4, seed=1, options={"rules": "alfworld", "rooms": [kind]}):
            assert {thing.kind for thing in world.receptacles} <= set(ROOMS[kind].most)
            assert {thing.kind for thing in world.objects} <= {
                *ROOMS[kind].objects,
                *ALFWORLD.lamps,
            }


def test_the_tables_of_the_house_hang_together() -> None:
    for room in ROOMS.values():
        assert set(room.always) <= set(room.most) <= set(ALFWORLD.receptacles)
        for kind in room.objects:
            assert any(home in room.most for home in ALFWORLD.homes[kind]), kind
    for homes in ALFWORLD.homes.values():
        assert len(set(homes)) == len(homes)
    assert set(DEVICE.values()) <= set(ALFWORLD.receptacles)
    assert not {home for lamp in ALFWORLD.lamps for home in ALFWORLD.homes[lamp]} & OPENABLE
    assert {thing.kind for world in GAMES for thing in world.objects} >= set(ALFWORLD.lamps)


async def test_the_contract_is_kept_under_alfworlds_rules() -> None:
    wanted: Any = {"rules": "alfworld", "receptacles": [8, 12], "things": [4, 8]}
    require(await check_environment(FAMILY, generator_options=wanted, count=2))
    tagged: Any = {"answer": "tag"}
    require(
        await check_environment(FAMILY, options=tagged, generator_options=wanted, count=1, seed=2)
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rules": "real"}, "field rules"),
        ({"hint": True}, "field hint"),
        ({"phrase": 2}, "field phrase"),
        ({"receptacles": {**ROOM["receptacles"], "shelf 4": "open"}}, "shelf 4: the room has 3"),
        ({"receptacles": {**ROOM["receptacles"], "shelf 31": "open"}}, "a number 1..30"),
        ({"objects": {**ROOM["objects"], "pen 2": "fridge 1"}}, "'fridge 1' does not hold it"),
        ({"objects": {**ROOM["objects"], "unicorn 1": "desk 1"}}, "unknown kind"),
        ({"goal": {"type": "heat", "object": "soapbar", "target": "shelf"}}, "does not suit"),
    ],
)
def test_a_bad_game_is_refused_and_the_field_is_named(
    change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**ROOM, **change})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"distractors": [1, 2]}, "distractors"),
        ({"rooms": ["attic"]}, "rooms"),
        ({"rooms": ["bathroom"], "goals": ["heat"]}, "no solvable game"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.generate(count=1, seed=0, options={"rules": "alfworld", **options})


def test_single_words_are_refused_for_games_that_have_none() -> None:
    world = world_of(ROOM)
    with pytest.raises(InputError, match="field wording"):
        Episode(world, PlayOptions(wording="terse"), announce(world))
