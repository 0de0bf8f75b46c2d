"""Submitting, following and exporting runs: what the REST routes call beside the run store."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from services.trainer.parts import WeightsApi
from services.trainer.reporting import demand_packages
from services.trainer.rollback import Rollbacks
from services.trainer.run_store import RunStore
from services.trainer.success import demand_success
from triforge.access.callers import caller
from triforge.broker import EVENTS_STREAM, Broker
from triforge.config import Settings, merge, parse, read_document
from triforge.errors import ConfigError, ConflictError, InputError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import export_step_records
from triforge.types import ENDED, Event, Message, PoolState, RunState, TrainedRole
from triforge.web.text import demand_keepable

MAX_CONFIG: Final = 256 * 1024  # characters of JSON; a whole document has less than 10,000
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class RunRequest(Message):
    """Body of `POST /v1/runs`. `config` is laid over the deployment's own document."""

    pool: Annotated[str, Field(min_length=1, description="Id or name of the task pool.")]
    name: Annotated[str, Field(max_length=200)] = ""
    config: dict[str, Any] = Field(default_factory=dict)


def _demand_kept(config: dict[str, Any]) -> None:
    """Pass a config that every reader of the run's row can take, page by page and in every answer."""
    demand_keepable(config, "config")
    text = json.dumps(config)
    if len(text) > MAX_CONFIG:
        raise InputError(f"config: given {len(text)} characters of JSON, at most {MAX_CONFIG}")
    if _NUL.search(text):
        raise InputError(
            "config: holds a character 0, which no path, no name and no database takes"
        )


class PoolApi(Protocol):
    """The part of env_adapter's client that submitting needs."""

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        """The pool by id or name, as a tenant sees it if one is given."""
        ...


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
        self.rollbacks = Rollbacks(store, artifacts, apis or {})
        self._pools, self._broker, self._artifacts = pools, broker, artifacts
        self._settings, self._exports = settings, exports

    async def submit(self, request: RunRequest, idempotency_key: str | None) -> RunState:
        """Check a run's config and queue it.

        The pool's own options lie over the deployment's document, and the request's config over both.
        """
        _demand_kept(request.config)
        base = read_document(self._settings.config) if self._settings.config else {}
        named = {"run": {"name": request.name}} if request.name else {}
        parse(merge(merge(base, request.config), named))  # before anybody is asked for the pool
        who = caller()
        pool = await self._pools.pool(request.pool, tenant="" if who.everything else who.tenant)
        described = merge(base, {"env_adapter": {"options": pool.options}})
        config = parse(merge(merge(described, request.config), named))
        demand_packages(config, self._artifacts)
        if config.reward.kind == "unit_tests" and not pool.programs:
            raise ConfigError(
                f"reward.kind: given 'unit_tests' for the pool {pool.name!r} of {pool.environment!r}, allowed 'votes': its "
                "tasks are not solved by programs that tests could run on"
            )
        if pool.scored and config.env_adapter.options.get("success_at") is None:
            demand_success(config, pool.environment)
        return await asyncio.to_thread(
            self.store.create,
            name=config.run.name,
            pool_id=pool.id,
            config=config.model_dump(mode="json"),
            idempotency_key=idempotency_key,
            tenant=pool.tenant,  # whoever starts it: a run on a tenant's pool is the tenant's
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

    async def export(self, run_id: str) -> Path:
        """The run's record as one temporary Parquet file, which the caller deletes."""
        steps = await asyncio.to_thread(self.store.steps, run_id)
        kinds = ("step_record", "evaluation")
        uris = [step.artifacts[k] for step in steps for k in kinds if k in step.artifacts]
        if not uris:
            raise ConflictError(
                f"run {run_id} has no finished training step yet; there is nothing to export"
            )
        folder = Path(tempfile.mkdtemp(prefix="triforge-export-", dir=self._exports))
        path = folder / f"{run_id}.parquet"
        try:
            await asyncio.to_thread(export_step_records, self._artifacts, uris, path)
        except BaseException:  # nobody hears of the folder, a caller that went away included
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return path


def _entry_order(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
