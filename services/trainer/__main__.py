"""`python -m services.trainer api | learner | supervised | merge-lora | replay`: the only wiring of this service."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from triforge.errors import TriforgeError

SHARDINGS = ("auto", "full", "replicate")  # see `distributed.Sharding`, which needs torch


def api() -> int:
    """Serve the REST APIs and conduct the runs. No torch."""
    import uvicorn

    from services.trainer.app import create_app
    from services.trainer.loop.gauges import DeploymentGauges
    from services.trainer.loop.orchestrator import Orchestrator
    from services.trainer.loop.parts import Parts
    from services.trainer.runs.runs import Runs
    from services.trainer.runs.store import RunStore
    from triforge.broker import RedisBroker
    from triforge.clients.env_adapter import EnvAdapterClient
    from triforge.clients.policy import PolicyClient
    from triforge.config import Settings
    from triforge.event_loop import run
    from triforge.store.artifacts import ArtifactStore
    from triforge.store.database import open_database
    from triforge.telemetry import begin
    from triforge.web.guard import entrance_of
    from triforge.web.server import config_of

    begin("trainer", "api")
    settings = Settings.from_env()
    artifacts = ArtifactStore(settings.artifacts_url)
    artifacts.try_out()
    database = open_database(settings.database_url)
    entrance = entrance_of(settings, database)

    async def serve() -> None:
        store = RunStore(database)
        broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
        pools = EnvAdapterClient(settings.env_adapter_url, api_key=settings.own_key)
        parts = Parts(
            store=store,
            broker=broker,
            artifacts=artifacts,
            env_adapter=pools,
            apis={role: PolicyClient.from_settings(settings, role) for role in settings.trained},
            settings=settings,
        )

        async def ready() -> None:
            await broker.ping()
            await asyncio.to_thread(database.ping)

        runs = Runs(
            store=store,
            pools=pools,
            broker=broker,
            artifacts=artifacts,
            settings=settings,
            apis=parts.apis,
        )
        app = create_app(
            runs=runs,
            orchestrator=Orchestrator(parts),
            ready=ready,
            entrance=entrance,
            refresh=DeploymentGauges(broker, store, artifacts).refresh,
        )
        port = urlsplit(settings.trainer_url).port or 8004
        await uvicorn.Server(config_of(app, settings.host, port)).serve()

    run(serve())
    return 0


def learner(arguments: Sequence[str]) -> int:
    """Train one role, batch by batch, until SIGTERM."""
    from services.trainer.learner.memory import keep_freed_memory

    keep_freed_memory()  # before torch allocates anything
    from services.trainer.learner.batch_trainer import BatchTrainer
    from services.trainer.learner.parallel.ranks import Ranks
    from services.trainer.learner.process import serve_learner
    from triforge.config import Settings
    from triforge.metrics import serve_metrics
    from triforge.store.artifacts import ArtifactStore
    from triforge.supervisor.process import ENDS_WITH_US
    from triforge.telemetry import begin

    if "TORCHELASTIC_RUN_ID" in os.environ and ENDS_WITH_US:
        ENDS_WITH_US()  # torchrun starts ranks in sessions of their own, which outlive it
    options = _learner_options(arguments)
    begin("trainer", f"learner-{options.role}")
    settings = Settings.from_env()
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one a node, also while it waits for the others
        serve_metrics(settings, service="trainer", process=f"learner-{options.role}")
    store = ArtifactStore(settings.artifacts_url)
    store.try_out()
    ranks = Ranks.join(options.sharding)
    trainer = BatchTrainer(store, ranks)
    with contextlib.ExitStack() as stack:
        handover = None
        if settings.handover == "distributed":
            from services.trainer.learner.parallel.broadcast import broadcasts

            handover = stack.enter_context(broadcasts(store, settings, ranks.device))
        if ranks.rank > 0:
            trainer.follow()
        else:
            asyncio.run(serve_learner(options.role, settings, store, trainer, handover))
    ranks.leave()
    return 0


def _learner_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m services.trainer learner", description=learner.__doc__
    )
    parser.add_argument(
        "--role", required=True, help="name of the model: policy, reward, or a further one"
    )
    parser.add_argument(
        "--sharding",
        choices=SHARDINGS,
        default="auto",
        help="what each of several ranks holds: shares (full), everything (replicate), or by the machine",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run one command; every command but `api` brings torch and has its own options (`--help`)."""
    parser = argparse.ArgumentParser(prog="python -m services.trainer", description=__doc__)
    parser.add_argument(
        "command",
        choices=(
            "api", "learner", "supervised", "merge-lora", "replay",
        ),
    )  # fmt: skip
    known, rest = parser.parse_known_args(arguments[:1])
    given = [*rest, *arguments[1:]]
    try:
        if known.command == "api":
            prog = "python -m services.trainer api"
            argparse.ArgumentParser(prog=prog, description=api.__doc__).parse_args(given)
            return api()
        if known.command == "learner":
            return learner(given)
        if known.command == "replay":
            from services.trainer.replay.replay import main as replay

            return replay(given)
    except TriforgeError as error:
        print(f"{error.kind}: {error.detail}", file=sys.stderr)  # noqa: T201 (a command's output)
        return 1
    from services.trainer.learner.commands import run

    return run(known.command, given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
