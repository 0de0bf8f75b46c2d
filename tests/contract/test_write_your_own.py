"""The example of docs/environments.md is a package: found by its entry point, it plays as it stands there and keeps the contract."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from triforge.environments import registry
from triforge.testing.check_environment import check_environment, require
from triforge.testing.entry_points import offer_family

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
MOST_LINES = 60


def block(language: str) -> str:
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"```{language}\n")
    assert found
    return rest.partition("\n```")[0] + "\n"


async def test_the_example_is_found_by_its_entry_point_and_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adding.py").write_text(block("python"))
    entries = tomllib.loads(block("toml"))["project"]["entry-points"][registry.GROUP]
    for name, target in entries.items():
        offer_family(tmp_path, name, target)
    monkeypatch.syspath_prepend(tmp_path)
    assert "adding" in registry.known()
    family = registry.family("adding")
    require(await check_environment(family, options={"tries": 3}, generator_options={"b": 50}))


def test_it_is_as_short_as_promised() -> None:
    lines = [line for line in (block("toml") + block("python")).splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
