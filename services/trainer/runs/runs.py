"""The runs of a deployment: what their routes work with, and the checks of a run before it is queued."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from fastapi import Depends, Request
from pydantic import Field

from services.trainer.runs.store import RunStore
from services.trainer.runs.trackers import require_packages
from triforge.access.callers import caller
from triforge.broker import Broker
from triforge.chat_template import read_json
from triforge.config import RunConfig, Settings, merge, parse, read_document
from triforge.environments.plugins import Allowed
from triforge.environments.trainable import (
    config_on,
    demand_criteria,
    demand_trainable,
    unplayable,
)
from triforge.errors import ConfigError, InputError, NotFoundError, UnavailableError
from triforge.json_text import require_keepable
from triforge.methods import loop_part
from triforge.store.artifacts import ArtifactStore
from triforge.store.model_config import difference
from triforge.types import (
    Message,
    Params,
    PoolState,
    Proposal,
    RunState,
    TrainedRole,
    WeightsState,
    WeightsUpdate,
)

MAX_CONFIG: Final = 256 * 1024  # characters of JSON; a whole document has less than 10,000
_CONFIGS: Final = ("config.json", "adapter_config.json")
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class PoolApi(Protocol):
    """The part of env_adapter's client that submitting and exporting need."""

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """Return the pool by id or name, as a tenant sees it if one is given."""

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        """Return the pool, if its tasks can be played with these options; InputError or ConfigError if not."""

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        """Return a pool's rewrites that meet the filters, oldest first."""


class ServedWeights(Protocol):
    """The part of a policy service's client that changes the weights it serves."""

    async def weights(self) -> WeightsState:
        """Return the version that the service serves."""

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version; returns when its engines are verified to serve it."""


class RunRequest(Message):
    """Body of `POST /v1/runs`. `config` is laid over the deployment's own document."""

    pool: Annotated[str, Field(min_length=1, description="Id or name of the task pool.")]
    name: Annotated[str, Field(max_length=200)] = ""
    config: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of a deployment, and what their routes work with.

    `settings` names the document that runs start from; `exports` is the folder of temporary exports (the machine's by default);
    the policy services `apis` follow a rollback.
    """

    store: RunStore
    pools: PoolApi
    broker: Broker
    artifacts: ArtifactStore
    settings: Settings
    exports: Path | None = None
    apis: Mapping[TrainedRole, ServedWeights] = field(default_factory=dict)

    async def submit(self, request: RunRequest, idempotency_key: str | None) -> RunState:
        """Check a run's config and queue it.

        The pool's own options lie over the deployment's document, and the request's config over both. Everything that can be
        checked now is: an option that the family does not know, a family that cannot be played here, a model folder that does
        not exist, more groups than tasks. The default number of groups a step is at most the number of tasks.
        """
        _require_kept(request.config)
        _require_allowed(request.config, Allowed.of(self.settings))
        base = read_document(self.settings.config) if self.settings.config else {}
        named = {"run": {"name": request.name}} if request.name else {}
        # before env_adapter is asked for the pool; wrong documents of many fields take a while
        await asyncio.to_thread(parse, merge(merge(base, request.config), named))
        who = caller()
        pool = await self.pools.pool(request.pool, tenant="" if who.everything else who.tenant)
        config = config_on(pool, base, merge(request.config, named))
        require_packages(config, self.artifacts)
        _require_deployed(config, self.settings)
        await _require_models(config, self.apis)
        config = _with_absolute_paths(config)
        demand_trainable(config, pool)
        await asyncio.to_thread(_require_runs_read, config, self.store)
        try:
            checked = await self.pools.check_pool(pool.id, config.env_adapter.options)
        except (InputError, ConfigError) as error:
            raise unplayable(pool, error) from None
        demand_criteria(config, checked)
        return await asyncio.to_thread(
            self.store.create,
            name=config.run.name,
            pool_id=pool.id,
            config=config.model_dump(mode="json"),
            idempotency_key=idempotency_key,
            tenant=pool.tenant,  # a run on a tenant's pool is the tenant's, whichever key submits it
        )


def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsDep = Annotated[Runs, Depends(_runs)]


def _require_kept(config: dict[str, Any]) -> None:
    """Reject a config that the database or a reader of the run's row cannot take."""
    require_keepable(config, "config")
    text = json.dumps(config)
    if len(text) > MAX_CONFIG:
        raise InputError(
            f"config: given {len(text)} characters of JSON, expected at most {MAX_CONFIG}"
        )
    if _NUL.search(text):
        raise InputError("config: given a character 0, which no path, name or database takes")


def _field(config: Any, section: str, name: str) -> Any:
    """Return what a document that is not checked yet has at `section.name`, None if there is nothing."""
    given = config.get(section) if isinstance(config, dict) else None
    return given.get(name) if isinstance(given, dict) else None


def _require_allowed(config: dict[str, Any], allowed: Allowed) -> None:
    """Reject paths `module:NAME` that the operator does not allow, before parsing imports them."""
    trainer = config.get("trainer")
    sections = {
        "algorithm.overrides": _field(config, "algorithm", "overrides"),
        "reward.kind": _field(config, "reward", "kind"),
        "adaptation.controller": _field(config, "adaptation", "controller"),
        "env_adapter.strategy": _field(config, "env_adapter", "strategy"),
        **{
            f"trainer.{name}.job": _field(trainer, name, "job")
            for name in (trainer if isinstance(trainer, dict) else ())
        },
    }
    for option, value in sections.items():
        for text in value.values() if isinstance(value, dict) else (value,):
            if isinstance(text, str) and ":" in text:
                allowed.demand(text, option)
    methods = config.get("methods")
    for path in methods if isinstance(methods, dict) else ():
        if ":" in path:
            allowed.demand(path, "methods")


def require_served(roles: Iterable[TrainedRole], settings: Settings) -> None:
    """Reject a run that needs a model for which the deployment has no service."""
    for role in roles:
        if role == "reward" and not settings.has("reward_model"):
            raise ConfigError(
                f"algorithm.preset: the run needs votes, and this deployment has no {role} model: start it with one "
                "(models.reward.path, and a preset with votes, in the document of `triforge up`), or choose a preset without "
                "votes, such as 'grpo'"
            )
        settings.demand_model(role)


def _require_deployed(config: RunConfig, settings: Settings) -> None:
    """Reject a run that needs a model, workers or hooks that this deployment does not have."""
    controller = config.adaptation.controller
    require_served(config.trained, settings)
    if config.adaptation.adapts and not settings.adapt_workers:
        raise ConfigError(
            f"adaptation.controller: given {controller!r}, and this deployment has no adapt workers: expected 'none'; or start "
            "the deployment with this controller in the document of `triforge up`"
        )
    if config.adaptation.chosen.rewrites and not settings.has("rewriter_model"):
        raise ConfigError(
            f"adaptation.controller: given {controller!r}, and this deployment has no rewriter: expected 'none'; or set "
            "models.rewriter.path in the document of `triforge up`"
        )
    for method, options in config.methods_used.items():
        if method.loop:
            loop_part(method)
        for name in options.addresses(config):
            if not settings.has(name):
                raise ConfigError(
                    f"methods.{method.name}: given, and this deployment has no {name}: expected its address in "
                    f"TRIFORGE_{name.upper()}_URL"
                )


async def _require_models(config: RunConfig, apis: Mapping[TrainedRole, ServedWeights]) -> None:
    """Reject model folders that do not exist, or of another architecture than the engines serve."""
    for role in config.models.trainable:
        path = getattr(config.models, role).path
        folder, api = Path(path), apis.get(role)
        if path and not any((folder / name).is_file() for name in _CONFIGS):
            raise ConfigError(
                f"models.{role}.path: given {path!r}, expected a model folder with a {_CONFIGS[0]}, where the services run"
            )
        if not path or api is None:
            continue
        with suppress(UnavailableError):  # the run waits for it
            serving = Path((await api.weights()).uri)
            changed = difference(*(read_json(one / _CONFIGS[0]) for one in (folder, serving)))
            if changed is not None:
                raise ConfigError(
                    f"models.{role}.path: {path}: {changed[0]} is {changed[1]!r:.80}, expected {changed[2]!r:.80} as in {serving}, "
                    "which is served: engines keep the architecture that they are started with; start the deployment with this model"
                )


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the config with absolute model folders: a run keeps them, wherever its services are started the next time."""
    models = {role: getattr(config.models, role) for role in config.models.trainable}
    changed: dict[str, Any] = {
        role: model.model_copy(update={"path": str(Path(model.path).absolute())})
        for role, model in models.items()
        if model.path
    }
    return config.model_copy(update={"models": config.models.model_copy(update=changed)})


def _require_runs_read(config: RunConfig, store: RunStore) -> None:
    """Reject other runs to read that have no steps, or that the caller may not see."""
    for method, options in config.methods_used.items():
        for option, other in options.runs_read.items():
            steps = 0
            with suppress(NotFoundError):
                steps = store.get(other).step
            if steps < 1:
                raise ConfigError(
                    f"methods.{method.name}.{option}: given {other!r}, expected a run with recorded steps; `triforge run list` "
                    "lists them"
                )
