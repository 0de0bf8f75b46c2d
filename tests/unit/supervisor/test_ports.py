"""Addresses and ports of a deployment: the environment first, then free or fixed ports, each given once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from triforge.config import Settings, parse
from triforge.errors import ConfigError
from triforge.supervisor.layout import Layout, plan_layout
from triforge.supervisor.ports import Ports, check_port, free_port
from triforge.supervisor.process import ProcessSpec

APIS = ("policy_model", "reward_model", "rewriter_model", "reward", "env_adapter", "trainer")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is taken."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def plan(tmp_path: Path, *, auto_ports: bool = False, **environ: str) -> Layout:
    """The layout of a whole config, with `environ` as `TRIFORGE_` variables."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    model = {"path": str(folder)}
    config = parse({"models": {"policy": model, "reward": model, "rewriter": model}})
    given = {f"TRIFORGE_{name}": value for name, value in environ.items()}
    return plan_layout(
        config, Settings.from_env(given), config_path=tmp_path / "run.toml",
        state=tmp_path / "state", auto_ports=auto_ports, environ=given,
    )  # fmt: skip


def fixed(**changes: str) -> dict[str, str]:
    """Every address set, on ports that are free now; `changes` are laid over."""
    ports = Ports(auto=True)
    apis = {
        f"{api.upper()}_URL": f"http://127.0.0.1:{ports.free()}" for api in (*APIS, "dashboard")
    }
    return apis | {"REDIS_URL": "redis://elsewhere:6379/0"} | changes


def spec(layout: Layout, name: str) -> ProcessSpec:
    [found] = [s for s in layout.specs if s.name == name]
    return found


def test_a_port_that_is_taken_is_refused_with_its_option(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"port {taken} \(TRIFORGE_X\) is taken .*--auto-ports"):
        check_port(taken, "TRIFORGE_X")
    check_port(free_port(), "TRIFORGE_X")


def test_two_apis_cannot_share_a_port(tmp_path: Path) -> None:
    environ = fixed()
    environ["TRAINER_URL"] = environ["REWARD_URL"]
    with pytest.raises(ConfigError, match="both TRIFORGE_REWARD_URL and TRIFORGE_TRAINER_URL"):
        plan(tmp_path, **environ)


def test_engine_port_variable(tmp_path: Path, taken: int) -> None:
    busy = fixed(POLICY_ENGINE_PORT=str(taken))
    with pytest.raises(ConfigError, match=r"\(TRIFORGE_POLICY_ENGINE_PORT\) is taken"):
        plan(tmp_path, **busy)
    ports = Ports(auto=True)
    numbers = {f"{role}_ENGINE_PORT": str(ports.free()) for role in ("POLICY", "REWARD", "REWRITER")}  # fmt: skip
    for automatic in (False, True):
        layout = plan(tmp_path, auto_ports=automatic, **fixed(**numbers))
        for role in ("policy", "reward", "rewriter"):
            url = f"http://127.0.0.1:{numbers[f'{role.upper()}_ENGINE_PORT']}"
            assert spec(layout, f"engine-{role}").ready_url == f"{url}/ready"
            assert spec(layout, f"{role}-model").env["TRIFORGE_ENGINES"] == url


def test_no_port_is_given_out_twice_and_none_that_is_reserved() -> None:
    ports = Ports(auto=True, reserved=range(0, 65536, 4))
    given = [ports.take(80, "api") for _ in range(200)]
    assert len(set(given)) == 200
    assert all(port % 4 for port in given)


def test_what_the_environment_does_not_set_lies_below_the_state_folder(tmp_path: Path) -> None:
    layout = plan(tmp_path, auto_ports=True)
    state = tmp_path / "state"
    assert layout.settings.database_url == f"sqlite:///{state}/triforge.sqlite"
    assert layout.settings.artifacts_url == f"{state}/artifacts"
    assert layout.settings.config == str(tmp_path / "run.toml")
    valkey = spec(layout, "valkey")
    assert valkey.folder == state / "valkey"
    assert f"redis://127.0.0.1:{valkey.tcp_port}/0" == layout.settings.redis_url
    assert valkey.command[valkey.command.index("--appendonly") + 1] == "yes"
    assert layout.specs[0] is valkey, "the broker comes first"


def test_the_environments_addresses_are_kept(tmp_path: Path) -> None:
    environ = fixed(DATABASE_URL="postgresql://db/x", ARTIFACTS_URL="/mnt/a")
    del environ["REWARD_URL"]
    layout = plan(tmp_path, auto_ports=True, **environ)
    assert layout.settings.redis_url == "redis://elsewhere:6379/0"
    assert layout.settings.database_url == "postgresql://db/x"
    assert layout.settings.policy_model_url == environ["POLICY_MODEL_URL"]
    assert "valkey" not in {s.name for s in layout.specs}


def test_settings_of_processes(tmp_path: Path) -> None:
    layout = plan(tmp_path, auto_ports=True)
    shared = layout.settings.environment()
    for process in layout.specs:
        if process.name not in ("valkey", "policy-model", "reward-model", "rewriter-model"):
            assert shared.items() <= process.env.items(), process.name
    service = spec(layout, "reward-model")
    assert service.ready_url == f"{layout.settings.reward_model_url}/readyz"
    engine = spec(layout, "engine-reward")
    assert engine.ready_url == f"{service.env['TRIFORGE_ENGINES']}/ready"
    assert Settings.from_env(dict(service.env)).role == "reward"


def test_engines_that_run_already_are_used_and_none_is_started(tmp_path: Path) -> None:
    engines = "http://gpu-1:30000,http://gpu-2:30000"
    layout = plan(tmp_path, auto_ports=True, POLICY_ENGINES=engines)
    assert spec(layout, "policy-model").env["TRIFORGE_ENGINES"] == engines
    names = {s.name for s in layout.specs}
    assert "engine-policy" not in names
    assert "engine-reward" in names


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_a_model_that_is_not_there_is_refused_by_its_field(tmp_path: Path, path: str) -> None:
    config = parse({"models": {"policy": {"path": path}}, "adaptation": {"controller": "none"}})
    with pytest.raises(ConfigError, match=r"models\.policy\.path: given .*, expected a .*folder"):
        plan_layout(
            config, Settings(), config_path=tmp_path / "x", state=tmp_path, auto_ports=True, environ={}
        )  # fmt: skip


def test_secrets_reach_the_children_only_through_the_environment(tmp_path: Path) -> None:
    layout = plan(tmp_path, auto_ports=True, API_KEY="hunter2")
    words: list[Any] = [word for process in layout.specs for word in process.command]
    assert not any("hunter2" in word for word in words)
    assert spec(layout, "policy-model").env["TRIFORGE_API_KEY"] == "hunter2"


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("[::1]", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")],
)  # fmt: skip
def test_addresses_follow_the_host(host: str, shown: str) -> None:
    given = {"TRIFORGE_HOST": host, "TRIFORGE_REWARD_URL": "http://elsewhere:1"}
    settings = Settings.from_env(given)
    assert settings.policy_model_url == f"http://{shown}:8001"
    assert settings.dashboard_url == f"http://{shown}:8005"
    assert settings.reward_url == "http://elsewhere:1"
    assert "[" not in settings.host
    assert Settings.from_env(settings.environment()) == settings  # as a child reads it


def test_a_port_is_looked_at_where_services_listen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        Ports(auto=False).claim(port, "here")
        with pytest.raises(ConfigError, match="taken"):
            Ports(auto=False, host="127.0.0.2").claim(port, "there")
    with pytest.raises(ConfigError, match="TRIFORGE_HOST"):
        Ports(auto=False, host="192.0.2.1").claim(port, "of another machine")
