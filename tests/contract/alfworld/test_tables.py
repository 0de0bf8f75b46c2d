"""Places and treatments of objects as in ALFWorld's own constants.

`constants.json` holds those constants; where alfworld is installed (`make test-alfworld`) it is compared with them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from environments.household.catalogue import ALFWORLD, CONTAINERS, SLICEABLE
from scripts.real_alfworld.install import constants

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "constants.json").read_text())
MOVABLE = set(RECORDED["MOVABLE_RECEPTACLES"])


def whole(kinds: list[str]) -> set[str]:
    """Kinds in the household's words, without the slices that games never begin with."""
    return {kind.lower() for kind in kinds if not kind.endswith("Sliced")}


def test_what_fits_where_is_alfworlds() -> None:
    theirs = {
        (kind, place.lower())
        for place, kinds in RECORDED["VAL_RECEPTACLE_OBJECTS"].items()
        if place not in MOVABLE
        for kind in whole(kinds)
    }
    ours = {(kind, place) for kind in ALFWORLD.objects for place in ALFWORLD.homes[kind]}
    assert len(theirs) == 524
    assert ours == theirs


def test_receptacles_are_alfworlds() -> None:
    assert set(ALFWORLD.receptacles) == whole(RECORDED["RECEPTACLES"]) - whole([*MOVABLE])
    assert whole([*MOVABLE]) == CONTAINERS


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Cleanable", ALFWORLD.suits["clean"]),
        ("Heatable", ALFWORLD.suits["heat"]),
        ("Coolable", ALFWORLD.suits["cool"]),
        ("Sliceable", SLICEABLE),
        ("Toggleable", frozenset(ALFWORLD.lamps)),
    ],
)
def test_what_can_be_done_to_what_is_alfworlds(theirs: str, ours: frozenset[str]) -> None:
    assert whole(RECORDED["VAL_ACTION_OBJECTS"][theirs]) == ours


@pytest.mark.skipif("ALFWORLD_PYTHON" not in os.environ, reason="`make test-alfworld` runs this")
def test_the_constants_are_those_of_the_installed_alfworld() -> None:
    assert constants(Path(os.environ["ALFWORLD_PYTHON"])) == RECORDED
