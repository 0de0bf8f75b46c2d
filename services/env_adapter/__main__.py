"""The programs of env_adapter: `python -m services.env_adapter api | rollout-worker | adapt-worker | serve`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from services.env_adapter.adaptation.adapter import AdaptWorker, make_adapter
from services.env_adapter.adaptation.endpoints import make_writer
from services.env_adapter.adaptation.settings import RunSettings
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.rollout.worker import RolloutWorker
from services.env_adapter.sessions.groups import SessionGroups
from services.env_adapter.sessions.store import SessionStore
from triforge.broker import (
    ADAPT_QUEUE,
    ADAPT_TASK,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    RedisBroker,
    SessionLog,
    Worker,
)
from triforge.clients.policy import ModelClients
from triforge.config import RunConfig, Settings, load
from triforge.environments import egress, registry
from triforge.errors import TriforgeError
from triforge.metrics import serve_metrics
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.images import ImageStore
from triforge.telemetry import begin
from triforge.types import GroupTask, TaskOutcome

_GROUPS: Final = 32  # in flight in one worker; env_adapter.concurrency bounds its episodes
_OUTCOMES: Final = 8  # in flight in one worker; few of them wait for a model


def api() -> int:
    """Serve pools, tasks, lineage, plans and sessions over REST."""
    import uvicorn

    from services.env_adapter.app import Parts, create_app
    from triforge.web.guard import entrance_of
    from triforge.web.server import config_of

    settings = Settings.from_env()
    egress.here()  # refuses a malformed option before anything is served
    database = open_database(settings.database_url)
    parts = Parts(
        database=database,
        family=registry.family,
        log=SessionLog(RedisBroker(settings.redis_url)),
        policy_url=settings.agents_url if settings.has("agents") else settings.policy_model_url,
        max_upload=settings.max_upload,
        session_days=settings.session_days,
        entrance=entrance_of(settings, database),
    )
    port = urlsplit(settings.env_adapter_url).port or 8003
    config = config_of(create_app(parts=parts), settings.host, port)
    asyncio.run(uvicorn.Server(config).serve())
    return 0


def _worker_settings(process: str, queue: str, slots: int) -> Settings:
    settings = Settings.from_env()
    settings.require_secret()
    serve_metrics(settings, service="env_adapter", process=process, queue=queue, slots=slots)
    return settings


def rollout_worker() -> int:
    """Handle the queue `rollout` until SIGTERM."""
    settings = _worker_settings("rollout-worker", ROLLOUT_QUEUE, _GROUPS)
    egress.here()  # refuses a malformed option before anything is played
    config = load(settings.config) if settings.config else RunConfig()
    artifacts = ArtifactStore(settings.artifacts_url)
    artifacts.try_out(folders=False)  # for screenshots, which need no folders
    database = open_database(settings.database_url)
    worker, keep = Worker(settings.redis_url, ROLLOUT_QUEUE), ImageStore(artifacts).put

    async def build() -> RolloutWorker:
        broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
        return RolloutWorker(
            broker=broker,
            generate=ModelClients(settings),
            read_task=PoolStore(database).task,
            family=registry.family,
            sessions=SessionGroups(SessionStore(database), SessionLog(broker), keep=keep),
            keep=keep,
            artifacts=artifacts,
            concurrency=config.env_adapter.concurrency,
        )

    worker.register(ROLLOUT_TASK, GroupTask, worker.run(build()).play)
    worker.serve(concurrency=_GROUPS)
    return 0


def adapt_worker() -> int:
    """Handle the queue `adapt` until SIGTERM."""
    settings = _worker_settings("adapt-worker", ADAPT_QUEUE, _OUTCOMES)
    database = open_database(settings.database_url)
    worker = Worker(settings.redis_url, ADAPT_QUEUE)

    async def build() -> AdaptWorker:
        writer = make_writer(settings, registry.family)
        broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
        adapter = make_adapter(database, registry.family, writer=writer)
        return AdaptWorker(broker=broker, adapter=adapter, settings=RunSettings(database).read)

    adapt = worker.run(build())
    worker.register(ADAPT_TASK, TaskOutcome, adapt.handle)
    worker.start(adapt.watch())
    worker.serve(concurrency=_OUTCOMES)
    return 0


PROGRAMS: Final[Mapping[str, Callable[[], int]]] = {
    "api": api,
    "rollout-worker": rollout_worker,
    "adapt-worker": adapt_worker,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.env_adapter", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, program in PROGRAMS.items():
        commands.add_parser(name, help=program.__doc__)
    served = commands.add_parser("serve", help="Serve a family over the OpenEnv protocol.")
    served.add_argument("arguments", type=json.loads, help="of `triforge env serve`, JSON")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one command."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    begin("env_adapter", command)
    try:
        if command in PROGRAMS:
            return PROGRAMS[command]()
        from services.env_adapter.openenv.server import serve

        return serve(**options["arguments"])
    except TriforgeError as error:
        print(f"{error.kind}: {error.detail}", file=sys.stderr)  # noqa: T201 (a command's output)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
