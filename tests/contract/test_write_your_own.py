"""The example of docs/extend.md is a package: found by its entry point, it plays as it stands there and keeps the contract."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from triforge.cli.training import Training
from triforge.environments import registry
from triforge.environments.tasks import CheckedTasks, generate
from triforge.testing.check_environment import check_environment, require
from triforge.testing.fakes import offer_family
from triforge.types import GenerateSpec

ROOT = Path(__file__).parents[2]
PAGE, FIRST = ROOT / "docs" / "extend.md", ROOT / "README.md"
MOST_LINES = 26


def block(language: str, page: Path = PAGE, begins: str = "") -> str:
    _, found, rest = page.read_text(encoding="utf-8").partition(f"```{language}\n{begins}")
    assert found
    return begins + rest.partition("\n```")[0] + "\n"


async def test_the_example_is_found_by_its_entry_point_and_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env.py").write_text(block("python"))
    entries = tomllib.loads(block("toml"))["project"]["entry-points"][registry.GROUP]
    for name, target in entries.items():
        offer_family(tmp_path, name, target)
    monkeypatch.syspath_prepend(tmp_path)
    assert "guess" in registry.known()
    family = registry.family("guess")
    require(await check_environment(family))
    assert registry.family("my_env:FAMILY") is family


def test_both_examples_make_as_many_tasks_as_training_asks_for() -> None:
    for page in (PAGE, FIRST):
        defined: dict[str, Any] = {}
        exec(block("python", page, "from triforge.environments.kit"), defined)
        with CheckedTasks() as checked:
            count, heldout = Training().counts()
            generate(defined["FAMILY"], GenerateSpec(count=count, heldout=heldout), checked)


def test_the_command_checks_it_by_its_path_in_the_folder_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(block("python"))
    script = Path(sys.executable).with_name(
        "triforge"
    )  # `python -m` would look in the folder by itself
    done = subprocess.run(
        [script, "env", "check", "my_env:FAMILY"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " checks, 0 broken" in done.stdout


def test_it_is_as_short_as_promised() -> None:
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
