"""`triforge key`: the secret is printed once, and nothing else prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from triforge.access.keys import KeyStore, parse_key
from triforge.cli.main import command_line
from triforge.errors import InputError, NotFoundError
from triforge.store.database import Database
from triforge.telemetry import masked


def triforge(*arguments: str) -> tuple[str, str]:
    """(stdout, stderr) of a command."""
    done = CliRunner().invoke(command_line(["key"]), list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("USER", "dana")
    monkeypatch.delenv("TRIFORGE_DATABASE_URL", raising=False)


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    out, err = triforge("key", "create", "nightly", "--scope", "read", "--tenant", "blue", *state)
    text = out.strip()  # nothing else goes to stdout: KEY=$(triforge key create ...)
    parts = parse_key("tfk", text)
    assert parts is not None
    assert "scope read, tenant blue" in err
    assert parts[1] not in err
    listed, _ = triforge("key", "list", *state)
    assert all(word in listed for word in (parts[0], "nightly", "blue", "read", "good"))
    assert parts[1] not in listed
    printed, _ = triforge("key", "revoke", parts[0], *state)
    assert "within 5 s" in printed
    assert "revoked" in triforge("key", "list", "--tenant", "blue", *state)[0]
    assert parts[0] not in triforge("key", "list", "--tenant", "red", *state)[0]
    (key,) = KeyStore(Database(f"sqlite:///{tmp_path}/triforge.sqlite")).all()
    assert key.opens(parts[1])
    assert key.revoked_at is not None


def test_impossible_keys_are_refused(tmp_path: Path) -> None:
    runner, state = CliRunner(), ("--state", str(tmp_path))
    made = runner.invoke(command_line(["key"]), ["key", "create", "k", "--scope", "root", *state])
    assert isinstance(made.exception, InputError)
    assert "read, submit, admin" in made.exception.detail
    ended = runner.invoke(command_line(["key"]), ["key", "revoke", "missing", *state])
    assert isinstance(ended.exception, NotFoundError)


def test_a_key_that_slips_into_a_log_line_is_masked(tmp_path: Path) -> None:
    text = triforge("key", "create", "k", "--state", str(tmp_path))[0].strip()
    id_, secret = parse_key("tfk", text) or ("", "")
    for line in (f"asked with {text}", f"Authorization: Bearer {text}", f"GET /?key={text}&x=1"):
        assert secret not in masked(line)
    assert id_ in masked(f"asked with {text}")
