"""The maps of docs/architecture.md name what there is, once, and nothing that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def parts(folder: str) -> set[str]:
    """Packages and modules right below a folder."""
    found = {path.stem for path in (ROOT / folder).glob("*.py")}
    found |= {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    return {name for name in found if not name.startswith("__")}


def test_the_map_of_the_hall_names_every_package_once() -> None:
    rows = re.findall(r"^\| `triforge\.(\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(parts("triforge"))


def test_the_map_of_the_rooms_names_every_room_and_every_package_of_it() -> None:
    rows = dict(re.findall(r"^\| `services\.(\w+)` \|(.*)$", TEXT, re.MULTILINE))
    assert set(rows) == parts("services")
    for room, row in rows.items():
        packages = {p.parent.name for p in (ROOT / "services" / room).glob("*/__init__.py")}
        assert packages <= set(re.findall(r"`(\w+)`", row)), room


def test_modules_that_the_maps_name_are_there() -> None:
    for room, row in re.findall(r"^\| `services\.(\w+)` \|(.*)$", TEXT, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row):
            folder = ROOT / "services" / room
            assert any(folder.rglob(name)) or any(folder.rglob(f"{name}.py")), (room, name)
