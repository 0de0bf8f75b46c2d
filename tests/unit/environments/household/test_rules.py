"""Commands of the household, in a room small enough to check by eye."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.household.episode import Episode
from environments.household.generator import generate
from environments.household.params import PlayOptions, world_of
from environments.household.wording import announce, vocabulary
from environments.household.world import NOWHERE, Command, Verb, World
from triforge.errors import InputError

ROOM: dict[str, Any] = {
    "receptacles": {
        "fridge 1": "closed",
        "microwave 1": "closed",
        "shelf 1": "open",
        "sinkbasin 1": "open",
        "desk 1": "open",
    },
    "objects": {
        "mug 1": "fridge 1",
        "mug 2": "shelf 1",
        "apple 1": "fridge 1",
        "desklamp 1": "desk 1",
    },
    "goal": {"type": "clean", "object": "mug", "target": "shelf"},
    "horizon": 30,
    "hint": False,
}


def room(goal_type: str, kind: str, target: str, **more: Any) -> World:
    return world_of({**ROOM, "goal": {"type": goal_type, "object": kind, "target": target}, **more})


def play(world: World, *responses: str, **options: Any) -> list[Any]:
    episode = Episode(world, PlayOptions(**options), announce(world))
    episode.start()
    return [episode.play(response) for response in responses]


def texts(results: list[Any]) -> list[str]:
    return [result.observation.text for result in results]


def test_a_terse_game_reads_in_single_words() -> None:
    world = room("clean", "apple", "shelf")
    first = Episode(world, PlayOptions(wording="terse"), announce(world)).start()
    assert first.system == ""
    assert first.observation.text == (
        "task put clean apple in shelf room desk fridge microwave shelf sinkbasin"
    )
    results = play(
        world,
        "go fridge",
        "open fridge",
        "take apple",
        "go sinkbasin",
        "clean apple",
        "go shelf",
        "put apple",
        wording="terse",
    )
    assert texts(results) == ["closed", "apple mug", "ok", "empty", "ok", "mug", "done"]
    assert [r.label for r in results] == [1] * 7
    assert [r.done for r in results] == [False] * 6 + [True]
    assert results[-1].success


def test_a_full_game_reads_in_sentences_with_numbers() -> None:
    results = play(
        room("cool", "mug", "shelf"),
        "go to shelf 1",
        "take mug 2 from shelf 1",
        "examine mug 2",
        "inventory",
        "go to fridge 1",
        "cool mug 2 with fridge 1",
        "go to shelf 1",
        "Move  mug 2 to SHELF 1 ",
    )
    assert texts(results) == [
        "You arrive at shelf 1. On the shelf 1, you see a mug 2.",
        "You pick up the mug 2 from the shelf 1.",
        "This is a normal mug 2.",
        "You are carrying: a mug 2.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You cool the mug 2 using the fridge 1.",
        "You arrive at shelf 1. On the shelf 1, you see nothing.",
        "You move the mug 2 to the shelf 1. You have done your task.",
    ]
    assert results[-1].success


@pytest.mark.parametrize(
    ("goal", "commands"),
    [
        (("place", "apple", "shelf"), "go fridge,open fridge,take apple,go shelf,put apple"),
        (
            ("heat", "apple", "shelf"),
            "go fridge,open fridge,take apple,go microwave,heat apple,go shelf,put apple",
        ),
        (
            ("two", "mug", "shelf"),
            "go fridge,open fridge,take mug,go shelf,put mug",
        ),
        (("look", "mug", "desklamp"), "go shelf,take mug,go desk,use desklamp"),
        (
            ("look", "mug", "desklamp"),
            "go desk,use desklamp,go shelf,take mug,go desk",
        ),
    ],
)
def test_each_goal_is_won_by_its_last_command_and_not_before(
    goal: tuple[str, str, str], commands: str
) -> None:
    results = play(room(*goal), *commands.split(","), wording="terse")
    assert [r.success for r in results] == [False] * (len(results) - 1) + [True]


def test_heating_undoes_cooling() -> None:
    world = room("cool", "apple", "shelf")
    results = play(
        world,
        *["go fridge", "open fridge", "take apple", "cool apple", "go microwave", "heat apple"],
        *["go shelf", "put apple"],
        wording="terse",
    )
    assert all(r.action_valid for r in results)
    assert not results[-1].success


def test_two_of_a_kind_must_lie_in_one_place() -> None:
    receptacles = {"shelf 1": "open", "shelf 2": "open", "desk 1": "open"}
    objects = {"mug 1": "desk 1", "mug 2": "desk 1"}
    world = room("two", "mug", "shelf", receptacles=receptacles, objects=objects)
    commands = "go desk,take mug,go shelf 1,put mug,go desk,take mug,go shelf 2,put mug"
    results = play(world, *commands.split(","), wording="terse")
    assert all(r.action_valid for r in results)
    assert not results[-1].success
    assert [r.label for r in results] == [1] * 6 + [-1, -1]


def test_nothing_is_put_through_a_closed_door_or_seen_behind_it() -> None:
    commands = ["go shelf", "take mug", "go fridge", "put mug", "open fridge", "close fridge"]
    results = play(room("place", "mug", "fridge"), *commands, "put mug", "take apple")
    assert not any(r.action_valid for r in results[:1])  # terse words mean nothing in sentences
    terse = play(room("heat", "mug", "fridge"), *commands, "put mug", wording="terse")
    assert texts(terse) == ["mug", "ok", "closed", "fail", "apple mug", "ok", "fail"]
    world = room("heat", "mug", "fridge")
    mug, fridge = 2, 1
    before_the_door = world.start()._replace(at=fridge, held=mug, where=(1, 0, -1, 3))
    assert world.apply(before_the_door, Command("put", mug, fridge)) is None
    shut = play(room("heat", "mug", "shelf"), "go fridge", "take mug", wording="terse")
    assert texts(shut) == ["closed", "fail"]


@pytest.mark.parametrize(
    "response",
    ["", "take mug", "open shelf", "put mug", "clean mug", "go moon", "go fridge fridge", "look"],
)
def test_an_inadmissible_command_fails_and_changes_nothing(response: str) -> None:
    world = room("clean", "mug", "shelf")
    episode = Episode(world, PlayOptions(wording="terse"), announce(world))
    result = episode.play(response)
    assert (result.observation.text, result.action_valid, result.label) == ("fail", False, -1)
    assert episode.state == world.start()
    assert episode.steps == 1


@pytest.mark.parametrize(
    ("answer", "response", "valid"),
    [
        ("whole", "go fridge", True),
        ("whole", "I think:\ngo fridge", False),
        ("last_line", "I think:\n go fridge\n\n", True),
        ("last_line", "go fridge\nthat is it", False),
        ("boxed", r"so \boxed{go desk}, no, \boxed{go fridge}.", True),
        ("boxed", r"so \boxed{go fridge} or \boxed{go", True),
        ("boxed", "go fridge", False),
    ],
)
def test_the_option_answer_says_which_part_of_a_response_counts(
    answer: str, response: str, valid: bool
) -> None:
    result = play(room("clean", "mug", "shelf"), response, wording="terse", answer=answer)[0]
    assert result.action_valid == valid


def test_the_horizon_ends_the_episode_as_a_failure() -> None:
    results = play(room("clean", "mug", "shelf", horizon=6), *["go moon"] * 6, wording="terse")
    assert [r.done for r in results] == [False] * 5 + [True]
    assert not results[-1].success


def test_two_cabinets_get_numbers_and_one_does_not() -> None:
    receptacles = {"cabinet 1": "closed", "cabinet 2": "open", "shelf 1": "open"}
    world = room("place", "mug", "cabinet", receptacles=receptacles, objects={"mug 1": "shelf 1"})
    results = play(world, "go shelf", "take mug", "go cabinet 2", "put mug", wording="terse")
    assert results[-1].success
    assert announce(world) == "put some mug in cabinet"


def test_of_two_mugs_in_one_place_the_treated_one_is_meant() -> None:
    world = room("two", "mug", "sinkbasin")
    episode = Episode(world, PlayOptions(wording="terse"), announce(world))
    commands = "go fridge,open fridge,take mug,go desk,put mug,go shelf,take mug,go desk,put mug"
    for command in commands.split(","):
        assert episode.play(command).action_valid
    first, second, desk = 2, 3, 0
    assert episode._offered["take mug"] == Command("take", first, desk)
    episode.state = episode.state._replace(clean=1 << second)
    episode.play("go shelf")
    episode.play("go desk")
    assert episode._offered["take mug"] == Command("take", second, desk)


LABELS = [
    ("go shelf", 1),  # a place not looked into
    ("look", -1),  # no such command in terse
    ("go desk", -1),  # the mug was seen here
    ("go shelf", 1),
    ("take mug", 1),
    ("put mug", -1),  # not clean yet
    ("take mug", 1),
    ("go desk", -1),
    ("go sinkbasin", 1),
    ("clean mug", 1),
    ("clean mug", -1),
    ("go fridge", -1),
    ("go shelf", 1),
    ("put mug", 1),
]


def test_labels_follow_what_was_seen_so_far() -> None:
    commands = [command for command, _ in LABELS]
    results = play(room("clean", "mug", "shelf"), *commands, wording="terse")
    assert [(r.action, r.label) for r in results] == LABELS


PROGRESS = [
    (
        "go fridge",
        -1,
    ),  # a sensible search, but a mug lies on the shelf: the shortest plan is no shorter
    ("go shelf", 1),
    ("take mug", 1),
    ("put mug", -1),
    ("take mug", -1),  # as near as before
    ("go desk", -1),
    ("go sinkbasin", 1),
    ("clean mug", 1),
    ("clean mug", -1),
    ("jump", -1),
    ("go shelf", 1),
    ("put mug", 1),
]


def test_progress_labels_say_whether_the_shortest_plan_got_shorter_than_it_ever_was() -> None:
    world, commands = room("clean", "mug", "shelf"), [command for command, _ in PROGRESS]
    results = play(world, *commands, wording="terse", labels="progress")
    assert [(r.action, r.label) for r in results] == PROGRESS
    sensible = play(world, *commands, wording="terse")
    assert sensible[0].label == 1
    assert [r.observation for r in results] == [r.observation for r in sensible]


def test_an_object_already_treated_is_the_one_to_fetch() -> None:
    commands = "go shelf,take mug,go sinkbasin,clean mug,go desk,put mug,go fridge,open fridge"
    results = play(
        room("clean", "mug", "shelf"), *commands.split(","), "take mug", "put mug", wording="terse"
    )
    assert [r.label for r in results] == [1, 1, 1, 1, -1, -1, -1, -1, -1, -1]
    back = play(room("clean", "mug", "shelf"), *commands.split(","), "go desk", wording="terse")
    assert back[-1].label == 1


WORLDS = generate(
    count=6, seed=11, options={"receptacles": [5, 9], "per_kind": 2, "closed": 0.7, "horizon": 60}
)

PLACED: tuple[Verb, ...] = ("take", "put", "clean", "heat", "cool")
ALONE: tuple[Verb, ...] = ("use", "examine", "slice")
HOUSES = generate(count=6, seed=3, options={"rules": "alfworld"})


@given(st.sampled_from(WORLDS), st.lists(st.integers(0, 200), max_size=60), st.booleans())
def test_random_commands_never_break_the_room(
    world: World, presses: list[int], terse: bool
) -> None:
    episode = Episode(world, PlayOptions(wording="terse" if terse else "alfworld"), announce(world))
    words = set(vocabulary()) if terse else None
    for press in presses:
        if episode.done:
            break
        before = episode.state
        commands = episode.commands()
        valid = press % 5 > 0
        result = episode.play(commands[press % len(commands)] if valid else f"take {press}")
        after = episode.state
        assert result.action_valid == valid
        assert valid or after == before
        assert len(after.where) == len(world.objects)
        in_hand = [obj for obj, place in enumerate(after.where) if place == NOWHERE]
        assert in_hand == ([after.held] if after.held >= 0 else [])
        assert all(-1 <= place < len(world.receptacles) for place in after.where)
        assert after.opened & ~world.openable == 0
        assert after.hot & after.cold == 0
        assert after.held < 0 or not world.lamps >> after.held & 1
        assert words is None or set(result.observation.text.split()) <= words


@given(st.sampled_from(WORLDS + HOUSES), st.lists(st.integers(0, 200), max_size=30))
def test_exactly_the_listed_commands_do_something(world: World, presses: list[int]) -> None:
    state = world.start()
    for press in presses:
        offered = world.admissible(state)
        following = world.apply(state, offered[press % len(offered)])
        assert following is not None
        state = following
    offered = world.admissible(state)
    assert len(set(offered)) == len(offered)
    for verb in (*PLACED, *ALONE, "go", "open", "close"):
        for obj in [NOWHERE] if verb in ("go", "open", "close") else range(len(world.objects)):
            for rec in [NOWHERE] if verb in ALONE else range(len(world.receptacles)):
                command = Command(verb, obj, rec)
                assert (world.apply(state, command) is not None) == (command in offered), command


def test_the_vocabulary_is_small_and_refuses_full_sentences() -> None:
    assert len(vocabulary()) < 80
    with pytest.raises(InputError, match="terse"):
        vocabulary({"wording": "alfworld"})
