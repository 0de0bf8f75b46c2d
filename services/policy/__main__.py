"""`python -m services.policy`: one service for one model role, wired from the environment."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from services.policy.api.sessions import Sessions
from services.policy.app import create_app
from services.policy.engines.discovery import VLLM, Directory, parse_sources
from services.policy.engines.http import TIMEOUT_S
from services.policy.engines.pool import Limits, Pool
from services.policy.engines.protocol import Engine
from services.policy.engines.sglang import SGLangEngine
from services.policy.engines.vllm import VLLMEngine
from services.policy.gateway import Gateway
from services.policy.weights.broadcast import Broadcasts
from services.policy.weights.loader import WeightLoader
from services.policy.weights.sync import WeightSync
from triforge.broker import RedisBroker, SessionLog
from triforge.config import Settings
from triforge.errors import StorageError, TriforgeError
from triforge.event_loop import collect_seldom
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.telemetry import begin
from triforge.web.guard import entrance_of
from triforge.web.server import DrainingServer, config_of

# Longer than any client keeps an idle connection, so that the client closes it.
KEEP_ALIVE_S = 75
SHUTDOWN_S = 3  # after draining: for answers that are on their way
SPARE_S = 5.0  # connections wait a little longer than the pool, whose error names the option


def build(settings: Settings) -> Gateway:
    """Build the service's parts."""
    admin_key = (settings.admin_api_key or settings.api_key).get_secret_value()
    artifacts = ArtifactStore(settings.artifacts_url)
    published: Path | None = None
    with contextlib.suppress(StorageError):  # no folder that engines could read
        published = artifacts.local_path("weights")
    pool = build_pool(settings)
    weights = WeightSync(
        pool,
        role=settings.role,
        model_path=settings.model,
        published=published,
        loader=WeightLoader(
            way=settings.handover,
            pause_mode=settings.pause_mode,
            verify_by=settings.weights_verify,
            timeout_s=settings.handover_timeout_s,
        ),
        broadcasts=Broadcasts(admin_api_key=admin_key, together=settings.handover_group),
        depth=settings.weights_check,
        shared=settings.shared_engines,
    )
    return Gateway(pool, weights, ImageStore(artifacts))


def build_pool(settings: Settings) -> Pool:
    """Build the pool of the engines that the settings name, each by the kind that its address says."""

    def connect(url: str) -> Engine:
        kind = VLLMEngine if url.startswith(VLLM) else SGLangEngine
        return kind(
            url,
            api_key=settings.api_key.get_secret_value(),
            admin_api_key=settings.admin_api_key.get_secret_value(),
            max_connections=settings.engine_in_flight,
            timeout_s=settings.request_s + SPARE_S,
            load_s=max(TIMEOUT_S, settings.handover_timeout_s + SPARE_S),
        )

    sources = parse_sources(settings.engines)
    return Pool(
        [connect(source.url) for source in sources if not source.by_name],
        limits=Limits(
            in_flight=settings.engine_in_flight,
            waiting=settings.max_waiting,
            queue_s=settings.queue_s,
            request_s=settings.request_s,
        ),
        directory=Directory(sources),
        make=connect,
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Serve until a signal ends it."""
    argparse.ArgumentParser(
        prog="python -m services.policy",
        description="Serve one model role over REST, in front of its engines, until SIGTERM.",
        epilog="Addresses and secrets: environment variables named TRIFORGE_..., see docs/reference/configuration.md (`make docs`).",
    ).parse_args(arguments)
    begin("policy", os.environ.get("TRIFORGE_ROLE") or "policy")
    try:
        settings = Settings.from_env()
        settings.demand_model(settings.role)
        ArtifactStore(settings.artifacts_url).try_out(writes=False)
        entrance = entrance_of(settings)
        gateway = build(settings)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2
    sessions = None
    if settings.role == "policy" and settings.redis_url:
        sessions = Sessions(gateway, SessionLog(RedisBroker(settings.redis_url)))
    app = create_app(
        gateway=gateway,
        role=settings.role,
        api_key=settings.api_key.get_secret_value(),
        admin_api_key=settings.admin_api_key.get_secret_value(),
        max_body=settings.max_body,
        entrance=entrance,
        sessions=sessions,
    )
    port = urlsplit(settings.model_url(settings.role)).port or 80
    patience = {"timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": SHUTDOWN_S}
    config = config_of(app, settings.host, port, **patience)
    collect_seldom()
    DrainingServer(config, lambda: gateway.drain(settings.drain_s)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
