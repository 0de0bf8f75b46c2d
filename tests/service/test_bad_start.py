"""A process whose stores cannot be used ends at its start with a sentence and changes nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from services.env_adapter.__main__ import main as env_adapter
from services.policy.__main__ import main as policy
from services.reward.__main__ import main as reward
from services.trainer.__main__ import main as trainer
from triforge.store.database import open_database

APIS: dict[str, Callable[[], int]] = {
    "trainer": lambda: trainer(["api"]),
    "env_adapter": lambda: env_adapter(["api"]),
    "rollout-worker": lambda: env_adapter(["rollout-worker"]),
    "adapt-worker": lambda: env_adapter(["adapt-worker"]),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        monkeypatch.delenv(name)


def half_a_url(_: Path) -> str:
    return "postgresql//user:secret@host/triforge"


def no_folder(folder: Path) -> str:
    (folder / "file").write_text("")
    return f"sqlite:///{folder}/file/below/triforge.sqlite"


def no_database(folder: Path) -> str:
    (folder / "triforge.sqlite").write_bytes(os.urandom(8192))
    return f"sqlite:///{folder}/triforge.sqlite"


def no_server(_: Path) -> str:
    return "postgresql://user@127.0.0.1:1/triforge"


def newer_schema(folder: Path) -> str:
    url = f"sqlite:///{folder}/triforge.sqlite"
    open_database(url).close()
    with sqlite3.connect(folder / "triforge.sqlite") as link:
        link.execute("UPDATE alembic_version SET version_num = '9999'")
    link.close()
    return url


BAD: dict[str, tuple[Callable[[Path], str], str]] = {
    "half a URL": (half_a_url, "given 'postgresql//***@host/triforge', expected"),
    "no folder": (no_folder, "set TRIFORGE_DATABASE_URL to a place that can be written"),
    "no database": (no_database, "look at the disk and the file"),
    "no server": (no_server, "the database does not answer"),
    "newer schema": (newer_schema, "upgrade triforge or use another database_url"),
}


@pytest.mark.parametrize(
    ("api", "bad"),
    [
        *(("trainer", bad) for bad in BAD),
        *((api, "newer schema") for api in APIS if api != "trainer"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_with_what_mends_it(
    api: str,
    bad: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, sentence = BAD[bad]
    url = make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("triforge.sqlite")}
    monkeypatch.setenv("TRIFORGE_DATABASE_URL", url)
    monkeypatch.setenv("TRIFORGE_ARTIFACTS_URL", str(tmp_path / "artifacts"))
    assert APIS[api]() != 0
    output = capsys.readouterr().err
    assert sentence in output
    assert "Traceback" not in output
    assert "secret" not in output
    assert {path: path.read_bytes() for path in before} == before


NEED_ARTIFACTS: dict[str, Callable[[], int]] = {
    "trainer": lambda: trainer(["api"]),
    "learner": lambda: trainer(["learner", "--role", "policy"]),
    "rollout-worker": lambda: env_adapter(["rollout-worker"]),
    "policy": policy,
}


@pytest.mark.parametrize("process", NEED_ARTIFACTS)
def test_an_artifact_store_that_cannot_be_used_is_named_before_anything_else_is_done(
    process: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "artifacts").write_text(
        "a file where a folder should be"
    )  # root may write anywhere
    monkeypatch.setenv("TRIFORGE_DATABASE_URL", f"sqlite:///{tmp_path}/triforge.sqlite")
    monkeypatch.setenv("TRIFORGE_ARTIFACTS_URL", str(tmp_path / "artifacts"))
    monkeypatch.setenv("TRIFORGE_ENGINES", "http://127.0.0.1:1")
    assert NEED_ARTIFACTS[process]() != 0
    output = capsys.readouterr().err + caplog.text
    assert f"the artifact store {tmp_path}/artifacts: " in output
    assert "change TRIFORGE_ARTIFACTS_URL" in output
    assert "Traceback" not in output
    assert {path.name for path in tmp_path.iterdir()} == {"artifacts"}


NEED_SECRET: dict[str, Callable[[], int]] = {
    **APIS,
    "policy": policy,
    "reward": lambda: reward(["api"]),
    "judge-worker": lambda: reward(["judge-worker"]),
}


@pytest.mark.parametrize("process", NEED_SECRET)
@pytest.mark.parametrize(("secret", "given"), [("", "nothing"), ("short", "5 characters")])
def test_a_process_that_other_services_would_not_let_in_does_not_start(
    process: str,
    secret: str,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TRIFORGE_AUTH", "keys")
    monkeypatch.setenv("TRIFORGE_SERVICE_SECRET", secret)
    monkeypatch.setenv("TRIFORGE_DATABASE_URL", f"sqlite:///{tmp_path}/triforge.sqlite")
    monkeypatch.setenv("TRIFORGE_ARTIFACTS_URL", str(tmp_path / "artifacts"))
    assert NEED_SECRET[process]() != 0
    output = capsys.readouterr().err + caplog.text
    assert f"TRIFORGE_SERVICE_SECRET: given {given}, expected at least 24 characters" in output
    assert "Traceback" not in output
