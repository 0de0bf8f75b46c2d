"""The maps of docs/architecture.md name what there is, once, and nothing that is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = re.compile(r"^ *[a-z_]+ {2,}\S", re.MULTILINE)  # a list of modules in a docstring
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def parts(folder: str) -> set[str]:
    """Packages and modules right below a folder."""
    found = {path.stem for path in (ROOT / folder).glob("*.py")}
    found |= {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    return {name for name in found if not name.startswith("__")}


def test_the_map_of_the_hall_names_every_package_once() -> None:
    rows = re.findall(r"^\| `triforge\.(\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(parts("triforge"))


def test_the_map_of_the_services_names_every_service_and_every_package_of_it() -> None:
    rows = dict(re.findall(r"^\| `services\.(\w+)` \|(.*)$", TEXT, re.MULTILINE))
    assert set(rows) == parts("services")
    for service, row in rows.items():
        packages = {p.parent.name for p in (ROOT / "services" / service).glob("*/__init__.py")}
        assert packages <= set(re.findall(r"`(\w+)`", row)), service


def test_modules_that_the_maps_name_are_there() -> None:
    for service, row in re.findall(r"^\| `services\.(\w+)` \|(.*)$", TEXT, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row):
            folder = ROOT / "services" / service
            assert any(folder.rglob(name)) or any(folder.rglob(f"{name}.py")), (service, name)


@pytest.mark.parametrize(
    "package",
    [
        p.parent
        for p in ROOT.glob("triforge/*/__init__.py")
        if MAP.search(ast.get_docstring(ast.parse(p.read_text())) or "")
    ],
    ids=lambda package: package.name,
)
def test_a_package_that_lists_its_modules_lists_all_of_them(package: Path) -> None:
    said = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    listed = set(re.findall(r"^ *(\w+) {2,}\S", said, re.MULTILINE)) | set(
        re.findall(r"`(\w+)`", said)
    )
    modules = {p.stem for p in package.glob("*.py")} | {
        p.parent.name for p in package.glob("*/__init__.py")
    }
    assert {name for name in modules if not name.startswith("_")} - listed == set()
