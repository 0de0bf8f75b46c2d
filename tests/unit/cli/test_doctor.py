"""The doctor finds each of the likely faults, and says what mends it."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread

import pytest

from tests.unit.cli.conftest import Services, Triforge
from triforge import __version__, errors
from triforge.config import RunConfig, Settings, parse
from triforge.config.settings import SERVICES
from triforge.doctor.deployment import artifacts, broker, database
from triforge.doctor.deployment import services as ask
from triforge.doctor.installation import examine
from triforge.doctor.local import LEARNER, Finding, disk, extras, packages, sandbox, weights
from triforge.store.database import open_database

GIB = 2**30


def faults(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.state) for finding in found if finding.state != "ok"]


def alive(services: Services, *, version: str = __version__, ready: int = 200) -> None:
    body = json.dumps({"status": "alive", "version": version}).encode()
    services.answers["GET /healthz"] = (200, "application/json", body)
    detail = json.dumps({"detail": "no engine serves"}).encode()
    services.answers["GET /readyz"] = (ready, "application/problem+json", detail)


def at(url: str) -> Settings:
    return Settings.model_validate({f"{name}_url": url for name in SERVICES})


@pytest.fixture
def free() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


async def test_no_redis(free: int) -> None:
    (found,) = await broker(Settings(redis_url=f"redis://127.0.0.1:{free}/0"))
    assert (found.check, found.state) == ("redis", "bad")
    assert "TRIFORGE_REDIS_URL" in found.mend


async def test_services_that_do_not_answer(free: int) -> None:
    found = await ask(at(f"http://127.0.0.1:{free}"))
    assert faults(found) == [(f"service {name}", "bad") for name in SERVICES]
    assert found[0].mend.startswith("start it, or set TRIFORGE_POLICY_MODEL_URL")


async def test_services_by_version_and_readiness(services: Services) -> None:
    alive(services)
    assert faults(await ask(at(services.url))) == []
    alive(services, version="9.9")
    assert faults(await ask(at(services.url))) == [("version", "bad")] * len(SERVICES)

    alive(services, ready=503)
    found = await ask(at(services.url))
    assert faults(found) == [(f"service {name}", "bad") for name in SERVICES]
    assert "no engine serves" in found[0].text


async def test_a_service_whose_weights_have_gone(services: Services, tmp_path: Path) -> None:
    alive(services)
    folder = tmp_path / "v000012"
    for lost in ("", f"{folder}/model.safetensors"):
        state = {"role": "policy", "version": 12, "uri": str(folder), "lost": lost}
        reply = (200, "application/json", json.dumps(state).encode())
        services.answers["GET /v1/weights"] = reply
        found = [one for one in await ask(at(services.url), ["policy_model"]) if one.state != "ok"]
        assert [(one.check, one.state) for one in found] == [
            ("weights of service policy_model", "warning")
        ]
        assert (lost or str(folder)) in found[0].text


def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    for free, size, state in (
        (0.5, 100, "bad"),
        (4, 100, "warning"),
        (50, 100, "ok"),
        (0.5, 2, "ok"),
    ):
        assert disk(tmp_path, int(free * GIB), size * GIB).state == state


def test_what_addresses_and_a_document_ask_for_is_looked_for() -> None:
    assert extras(Settings(), RunConfig()) == {}
    settings = Settings(database_url="postgresql+psycopg://a@b/c", otlp_endpoint="http://c:4318")
    report = {"wandb_project": "p", "tensorboard": True}
    config = parse({"report": report, "trainer": {"policy": {"lora_rank": 8}}})
    assert set(extras(settings, None).values()) == {"postgres", "otel"}
    assert set(extras(settings, config).values()) == {
        "postgres", "otel", "tensorboard", "wandb", "lora",
    }  # fmt: skip
    (found,) = packages({"json": "core", "no_such_package.inside": "otel"})
    assert found.state == "bad"
    assert found.mend == ".venv/bin/pip install -c constraints.txt -e '.[otel]'"
    assert faults(packages({"json": "core"})) == []


def test_missing_or_forbidden_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as missing:
        missing.setenv("PATH", "/nonexistent")
        (found,) = sandbox()
    assert (found.state, "apt-get install bubblewrap" in found.text) == ("warning", True)
    (tmp_path / "bwrap").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (found,) = sandbox()
    assert found.state == "warning"
    assert "user namespaces" in found.mend


@pytest.mark.parametrize("damage", ["no folder", "no tokenizer", "truncated", "no tensors"])
def test_weights_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    if damage != "no folder":
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    if damage not in ("no folder", "no tokenizer"):
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text("{}")
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"\x40" + bytes(20))
    found = weights("models.policy.path", folder)
    assert (found.state, found.check) == ("bad", "weights of models.policy.path")
    assert "models.policy.path" in found.mend
    assert found.text.count(str(folder)) == 1


@pytest.mark.parametrize("revision", ["0001", "9999"])
def test_database_of_another_version(tmp_path: Path, revision: str) -> None:
    url = f"sqlite:///{tmp_path / 't.sqlite'}"
    assert faults([database(url)]) == []
    assert list(tmp_path.iterdir()) == [], "looking makes no database"
    store = open_database(url)
    assert faults([database(url)]) == []
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    found = database(url)
    assert found.state == "bad"
    assert revision in found.text
    store.close()


def test_artifacts_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = artifacts(str(tmp_path / "file"))
    assert found.state == "bad"
    assert faults([artifacts(str(tmp_path / "file" / "below"))]) == [("artifacts", "bad")]
    assert faults([artifacts(str(tmp_path / "new"))]) == []
    assert not (tmp_path / "new").exists(), "looking makes no folder"
    (tmp_path / "new").mkdir()
    assert faults([artifacts(str(tmp_path / "new"))]) == []
    assert list((tmp_path / "new").iterdir()) == []


def test_a_fresh_machine_has_no_faults(
    triforge: Triforge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "named").mkdir()
    code, out, _ = triforge("doctor", "--state", "named")
    assert (code, "no deployment runs in named" in out) == (0, True)
    assert not any((tmp_path / "named").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["named"]


def test_a_deployment_of_another_folder_is_not_examined(
    triforge: Triforge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        monkeypatch.delenv(name)
    with ExitStack() as stack:
        with suppress(OSError):  # a deployment of this machine has the port
            other = ThreadingHTTPServer(("127.0.0.1", 8004), BaseHTTPRequestHandler)
            Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
            stack.enter_context(other)
            stack.callback(other.shutdown)
        code, out, _ = triforge("doctor")
    assert (code, "no deployment runs in var" in out, "service trainer" in out) == (0, True, False)


async def test_without_a_deployment_packages_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LEARNER, "no_such_package", "trainer")
    found = await examine(Settings(), state=tmp_path, idle="none runs")
    assert ("packages", "warning") in faults(found)
    assert "bad" not in {one.state for one in found}
    assert found[-1].text == "none runs"


def test_the_install_command_of_a_package_without_its_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triforge").mkdir()
    copy = tmp_path / "triforge" / "errors.py"
    copy.write_bytes(Path(str(errors.__file__)).read_bytes())
    spec = spec_from_file_location("copied_errors", copy)
    assert spec is not None
    assert spec.loader is not None
    copied = module_from_spec(spec)
    spec.loader.exec_module(copied)
    pip = Path(sys.executable).with_name("pip")
    monkeypatch.chdir(tmp_path)
    assert copied.install_command("gymnasium") == f"{pip} install 'triforge[gymnasium]'"
    (tmp_path / "constraints.txt").touch()
    assert copied.install_command("lora") == f"{pip} install -c constraints.txt -e '.[lora]'"


def test_the_command_counts_faults_and_fails(
    triforge: Triforge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setenv("TRIFORGE_REDIS_URL", f"redis://127.0.0.1:{free}/0")
    code, out, err = triforge("doctor", "--state", str(tmp_path))
    assert (code, err) == (1, "")
    assert "BAD     redis: " in out
    assert "mend: start Valkey or Redis" in out
    assert out.splitlines()[-1].endswith(" warnings")
