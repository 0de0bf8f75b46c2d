"""A program of a service that is asked what it is says so, and starts nothing when it is asked for what it does not know."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SERVICES = sorted(path.parent.name for path in Path(__file__).parents[2].glob("services/*/__main__.py"))  # fmt: skip
SERVERS = {"trainer": ["api"], "env_adapter": ["api"], "reward": ["api"]}  # others need no word


def end(service: str, arguments: list[str]) -> object:
    """The exit status with which a program ends at its own command line."""
    module = importlib.import_module(f"services.{service}.__main__")
    with pytest.raises(SystemExit) as ended:
        module.main(arguments)
    return ended.value.code


def test_all_programs_are_looked_at() -> None:
    assert set(SERVICES) >= {
        "dashboard",
        "env_adapter",
        "local_engine",
        "policy",
        "reward",
        "trainer",
    }


@pytest.mark.parametrize("service", SERVICES)
def test_help_is_printed_and_nothing_started(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(service, ["--help"]) == 0
    assert f"usage: python -m services.{service}" in capsys.readouterr().out
    assert end(service, [*SERVERS.get(service, []), "--help"]) == 0
    assert f"usage: python -m services.{service}" in capsys.readouterr().out


@pytest.mark.parametrize("service", SERVICES)
def test_an_unknown_argument_starts_nothing(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ["--model-path", "nowhere"] if service == "local_engine" else SERVERS.get(service, [])
    assert end(service, [*known, "--no-such-option"]) == 2
    assert "unrecognized arguments: --no-such-option" in capsys.readouterr().err
