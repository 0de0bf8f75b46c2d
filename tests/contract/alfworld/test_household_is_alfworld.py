"""The household under ALFWorld's rules says, offers and rewards what the real engine does, command by command.

Recordings of the real engine hold it everywhere; where alfworld is installed (`make test-alfworld`), the real engine
itself does, on the same games.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from environments.alfworld.engine import Engine, Seen
from environments.household.catalogue import GOAL_TYPES
from environments.household.params import params_of, world_of
from environments.household.wording import announce
from scripts.real_alfworld.game_files import problem
from scripts.real_alfworld.play import (
    GAMES,
    Recording,
    commands,
    difference,
    recorded,
    worlds,
)

TRANSCRIPTS = Path(__file__).parent / "transcripts.json.gz"
INSTALLED = bool(os.environ.get("ALFWORLD_PYTHON")) or find_spec("alfworld") is not None


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    lines = gzip.decompress(TRANSCRIPTS.read_bytes()).decode().splitlines()
    return [recorded(json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if not INSTALLED:
        pytest.skip("alfworld is not installed; `make test-alfworld` installs it and runs this")
    made = Engine(processes=1, python=os.environ.get("ALFWORLD_PYTHON") or None)
    yield made
    made.close()


def test_every_recorded_game_goes_the_same_way_in_the_household(
    recordings: list[Recording],
) -> None:
    assert len(recordings) == GAMES + 1
    for number, recording in enumerate(recordings):
        world = world_of(recording.params)
        assert difference(world, recording.sequence, recording) is None, f"game {number}"


def test_the_recordings_cover_what_there_is_to_do(recordings: list[Recording]) -> None:
    verbs = {
        command.split()[0] for recording in recordings for command in recording.sequence if command
    }
    assert verbs >= {
        "go",
        "open",
        "close",
        "take",
        "move",
        "clean",
        "heat",
        "cool",
        "use",
        "slice",
        "examine",
    }
    assert verbs >= {"look", "inventory", "help"}
    goals = {
        world_of(recording.params).goal.type for recording in recordings if recording.seen[-1].won
    }
    assert goals == set(GOAL_TYPES)
    steps = [seen for recording in recordings for seen in recording.seen]
    assert sum(seen.text == "Nothing happens." for seen in steps) > 50
    pairs = [pair for r in recordings for pair in zip(r.sequence, r.seen[1:], strict=True)]
    assert {seen.text for command, seen in pairs if "  " in command.strip()} == {"Nothing happens."}
    lamps = {text for seen in steps for text in seen.commands if text.startswith("use ")}
    assert lamps >= {"use desklamp 1", "use floorlamp 1"}
    examined = {seen.text.split()[3] for seen in steps if seen.text.startswith("This is a")}
    assert examined >= {"hot", "cold", "cool", "clean", "sliced", "normal"}


@pytest.mark.parametrize("field", ["text", "commands", "won"])
def test_a_single_difference_is_found(recordings: list[Recording], field: str) -> None:
    recording = recorded_again(recordings[0])
    true = recording.seen[3]
    wrong = {
        "text": Seen(true.text + " ", true.commands, true.won),
        "commands": Seen(true.text, true.commands[1:], true.won),
        "won": Seen(true.text, true.commands, not true.won),
    }
    recording.seen[3] = wrong[field]
    assert difference(world_of(recording.params), recording.sequence, recording) is not None


def recorded_again(recording: Recording) -> Recording:
    return Recording(recording.params, list(recording.sequence), list(recording.seen))


def test_the_recordings_are_of_the_games_that_are_played_live(recordings: list[Recording]) -> None:
    for number, (world, recording) in enumerate(zip(worlds(), recordings, strict=True)):
        assert params_of(world) == recording.params
        assert list(commands(world, number)) == recording.sequence


@pytest.mark.timeout(1200)
def test_every_game_goes_the_same_way_in_both_engines(engine: Engine) -> None:
    for number, world in enumerate(worlds()):
        game = engine.start(problem=problem(world), task=announce(world))
        assert difference(world, commands(world, number), game) is None, f"game {number}"
        game.end()
