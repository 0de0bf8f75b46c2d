"""The table of commands, and what a command imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from triforge.cli.main import COMMANDS, command_line

CLIENT = {"torch", "transformers", "sqlalchemy", "redis", "celery", "fastapi", "uvicorn", "pyarrow"}
SHELL = {"_TRIFORGE_COMPLETE": "complete_bash", "COMP_WORDS": "triforge pool ", "COMP_CWORD": "2"}
RUN = """
import atexit, json, sys; sys.argv[0] = "triforge"
from triforge.cli import main
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
main()
"""


def call(arguments: list[str], folder: Path, **variables: str) -> tuple[str, set[str]]:
    """Return the output of a command, and the packages that it imports."""
    argv = [sys.executable, "-c", RUN, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **variables}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    *errors, modules = done.stderr.splitlines()
    return done.stdout + "\n".join(errors), {name.split(".")[0] for name in json.loads(modules)}


@pytest.mark.parametrize(
    ("arguments", "shown", "without"),
    [
        (["--help"], "proposal", {*CLIENT, "httpx", "pydantic", "numpy"}),
        (["--version"], "triforge ", {*CLIENT, "httpx", "pydantic", "numpy"}),
        (["run", "list", "--state", "."], "no deployment answers", CLIENT),
        (["train", "--model", "tiny", "--env", "nosuch", "--state", "."], "'nosuch' is unknown", CLIENT),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_command_imports_what_it_needs(
    arguments: list[str], shown: str, without: set[str], tmp_path: Path
) -> None:
    printed, imported = call(arguments, tmp_path, TRIFORGE_TRAINER_URL="http://127.0.0.1:9")
    assert shown in printed
    assert sorted(imported & without) == []


def test_a_shell_completes_the_commands_of_a_group(tmp_path: Path) -> None:
    printed, _ = call([], tmp_path, **SHELL)
    assert {"create", "list"} <= set(printed.split())


def test_the_list_of_commands_has_the_first_paragraph_of_their_own_pages() -> None:
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    shown = {name: " ".join(commands[name].help.partition("\n\n")[0].split()) for name in COMMANDS}
    assert shown == {name: summary for name, (_, summary) in COMMANDS.items()}
