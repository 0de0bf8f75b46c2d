"""Submitting, following and exporting runs: what the REST routes call beside the run store."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from services.trainer.loop.engines import demand_served
from services.trainer.loop.parts import WeightsApi
from services.trainer.runs.rollback import Rollbacks
from services.trainer.runs.store import RunStore
from services.trainer.runs.trackers import demand_packages
from services.trainer.runs.trajectory_store import Trajectories
from triforge.access.callers import caller
from triforge.broker import EVENTS_STREAM, Broker
from triforge.chat_template import read_json
from triforge.config import RunConfig, Settings, merge, parse, read_document
from triforge.environments.plugins import Allowed
from triforge.environments.trainable import config_on, demand_trainable, unplayable
from triforge.errors import ConfigError, ConflictError, InputError, NotFoundError, UnavailableError
from triforge.json_text import require_keepable
from triforge.store.artifacts import ArtifactStore
from triforge.store.model_config import difference
from triforge.store.step_records import export_step_records
from triforge.types import ENDED, Event, Message, Params, PoolState, Proposal, RunState, TrainedRole

_TEXTS: Final = {"diagnosis", "prompt", "answer", "checks"}  # of a proposal; no verdict reads them
MAX_CONFIG: Final = 256 * 1024  # characters of JSON; a whole document has less than 10,000
_CONFIGS: Final = ("config.json", "adapter_config.json")
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class RunRequest(Message):
    """Body of `POST /v1/runs`. `config` is laid over the deployment's own document."""

    pool: Annotated[str, Field(min_length=1, description="Id or name of the task pool.")]
    name: Annotated[str, Field(max_length=200)] = ""
    config: dict[str, Any] = Field(default_factory=dict)


def _demand_kept(config: dict[str, Any]) -> None:
    """Pass a config that every reader of the run's row can take, page by page and in every answer."""
    require_keepable(config, "config")
    text = json.dumps(config)
    if len(text) > MAX_CONFIG:
        raise InputError(f"config: given {len(text)} characters of JSON, at most {MAX_CONFIG}")
    if _NUL.search(text):
        raise InputError(
            "config: holds a character 0, which no path, no name and no database takes"
        )


def _demand_allowed(config: dict[str, Any], allowed: Allowed) -> None:
    """Pass a config whose paths `module:NAME` the operator allows; asked before it is parsed, as that imports them."""
    for section, field in (
        ("algorithm", "overrides"),
        ("reward", "kind"),
        ("adaptation", "controller"),
    ):
        given = config.get(section)
        value = given.get(field) if isinstance(given, dict) else None
        for text in value.values() if isinstance(value, dict) else (value,):
            if isinstance(text, str) and ":" in text:
                allowed.demand(text, f"{section}.{field}")
    methods = config.get("methods")
    for name in methods if isinstance(methods, dict) else ():
        if ":" in name:
            allowed.demand(name, "methods")


async def _demand_models(config: RunConfig, apis: Mapping[TrainedRole, WeightsApi]) -> None:
    """Pass a run whose model folders are there, of the architectures that the engines were started with."""
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
                    "which serves: engines keep the architecture that they are started with; start the deployment with this model"
                )


def _with_whole_paths(config: RunConfig) -> RunConfig:
    """The config with absolute model folders: a run keeps them, wherever its services are started the next time."""
    given = {role: getattr(config.models, role) for role in config.models.trainable}
    whole: dict[str, Any] = {
        role: model.model_copy(update={"path": str(Path(model.path).absolute())})
        for role, model in given.items()
        if model.path
    }
    return config.model_copy(update={"models": config.models.model_copy(update=whole)})


class PoolApi(Protocol):
    """The part of env_adapter's client that submitting and exporting need."""

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """The pool by id or name, as a tenant sees it if one is given."""

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        """The pool, if its tasks can be played with these options; InputError or ConfigError if not."""

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        """A pool's rewrites, oldest first; those that meet the filters."""


class Runs:
    """The runs of this deployment.

    `settings` names the document that runs start from; `exports` is the folder where exports lie for a moment (the
    machine's temporary one by default); the policy services `apis` are asked to follow a rollback.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        pools: PoolApi,
        broker: Broker,
        artifacts: ArtifactStore,
        settings: Settings,
        exports: Path | None = None,
        apis: Mapping[TrainedRole, WeightsApi] | None = None,
    ) -> None:
        self.store = store
        self.trajectories = Trajectories(store, artifacts)
        self._apis = apis or {}
        self.rollbacks = Rollbacks(store, artifacts, self._apis)
        self._pools, self._broker, self._artifacts = pools, broker, artifacts
        self._settings, self._exports = settings, exports

    async def submit(self, request: RunRequest, idempotency_key: str | None) -> RunState:
        """Check a run's config and queue it.

        The pool's own options lie over the deployment's document, and the request's config over both. What can be known now is
        refused now: an option that the family does not know, a family that cannot be played here, a model folder that is not
        there, more groups than tasks. Where nobody says how many groups a step has, there are no more than tasks.
        """
        _demand_kept(request.config)
        _demand_allowed(request.config, Allowed.of(self._settings))
        base = read_document(self._settings.config) if self._settings.config else {}
        named = {"run": {"name": request.name}} if request.name else {}
        parse(merge(merge(base, request.config), named))  # before anybody is asked for the pool
        who = caller()
        pool = await self._pools.pool(request.pool, tenant="" if who.everything else who.tenant)
        config = config_on(pool, base, merge(request.config, named))
        demand_packages(config, self._artifacts)
        self._demand_served(config)
        await _demand_models(config, self._apis)
        config = _with_whole_paths(config)
        demand_trainable(config, pool)
        await asyncio.to_thread(self._demand_offline_run, config)
        try:
            await self._pools.check_pool(pool.id, config.env_adapter.options)
        except (InputError, ConfigError) as error:
            raise unplayable(pool, error) from None
        return await asyncio.to_thread(
            self.store.create,
            name=config.run.name,
            pool_id=pool.id,
            config=config.model_dump(mode="json"),
            idempotency_key=idempotency_key,
            tenant=pool.tenant,  # whoever starts it: a run on a tenant's pool is the tenant's
        )

    def _demand_offline_run(self, config: RunConfig) -> None:
        """Refuse a run to learn from that has no steps, or that the caller may not see."""
        other = config.trainer.action_critic.offline_run
        with suppress(NotFoundError):
            if not other or self.store.get(other).step > 0:
                return
        raise ConfigError(
            f"trainer.action_critic.offline_run: given {other!r}, expected a run with recorded steps; `triforge run list` lists them"
        )

    def _demand_served(self, config: RunConfig) -> None:
        """Refuse what asks for a model that this deployment does without."""
        controller = config.adaptation.controller
        demand_served(config.trained, self._settings)
        if config.adaptation.adapts and not self._settings.adapt_workers:
            raise ConfigError(
                f"adaptation.controller: given {controller!r}, and this deployment has no adapt workers: allowed 'none'; or start "
                "the deployment with this controller in the document of `triforge up`"
            )
        if config.adaptation.chosen.rewrites and not self._settings.has("rewriter_model"):
            raise ConfigError(
                f"adaptation.controller: given {controller!r}, and this deployment has no rewriter: allowed "
                "'none'; or name models.rewriter.path in the document of `triforge up`"
            )
        reward = config.reward
        asks = reward.kind == "vlm_contrast" and reward.contrast.encoder == "service"
        if asks and not self._settings.has("encoder"):
            raise ConfigError(
                "reward.kind: given 'vlm_contrast', and this deployment has no encoder: name one in TRIFORGE_ENCODER_URL, or take "
                "reward.contrast.encoder = 'colours' for a trial"
            )

    async def watchable(self, run_id: str) -> None:
        """Raise if there is no such run, or its events cannot be read."""
        await asyncio.to_thread(self.store.get, run_id)
        await self._broker.ping()

    async def events(self, run_id: str, after: str) -> AsyncIterator[tuple[str, Event] | None]:
        """The run's events after `after` (`0` is from the start), then live, until the run has ended.

        Yields None when nothing came for a while, so that an API can keep its connection alive.
        """
        cursor = after
        while True:
            ended = (await asyncio.to_thread(self.store.get, run_id)).status in ENDED
            newest = await self._broker.last_id(EVENTS_STREAM)
            events = await self._broker.read_events(cursor, run_id=run_id, block_s=1.0)
            for entry, event in events:
                cursor = entry
                yield entry, event
            if not events:
                cursor = max(cursor, newest, key=_entry_order)
                if ended:
                    return
                yield None

    async def export(self, run_id: str, only: int | None = None) -> Path:
        """The run's record, or that of one step, as one temporary Parquet file, which the caller deletes.

        The run's proposals are in its metadata with their counts and verdicts, so it needs env_adapter if tasks change.
        """
        run = await asyncio.to_thread(self.store.get, run_id)
        steps = await asyncio.to_thread(self.store.steps, run_id)
        kinds, known = (
            ("step_record", "evaluation"),
            [step.step for step in steps if step.artifacts],
        )
        wanted = [step for step in steps if only in (None, step.step)]
        uris = [step.artifacts[k] for step in wanted for k in kinds if k in step.artifacts]
        if not known:
            raise ConflictError(
                f"run {run_id} has no finished training step yet; there is nothing to export"
            )
        if not uris:
            raise NotFoundError(
                f"step: given {only}, expected a finished one of run {run_id}: {known[0]} to {known[-1]}"
            )
        made = list[Proposal]()
        if parse(run.config).adaptation.adapts:
            made = await self._pools.proposals(run.pool_id, run_id=run_id)
        proposals = [proposal.model_dump(mode="json", exclude=_TEXTS) for proposal in made]
        folder = Path(tempfile.mkdtemp(prefix="triforge-export-", dir=self._exports))
        path = folder / f"{run_id}.parquet"
        write = partial(export_step_records, self._artifacts, uris, path, proposals=proposals)
        try:
            await asyncio.to_thread(write)
        except BaseException:  # nobody hears of the folder, a caller that went away included
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return path


def _entry_order(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
