"""`python -m services.reward api | judge-worker`: the only wiring of this service."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from triforge.config import RunConfig, Settings, load
from triforge.errors import TriforgeError
from triforge.telemetry import begin

if TYPE_CHECKING:
    from services.reward.app import JudgeApi
    from triforge.clients.policy import PolicyClient

# Jobs that one worker works on at a time. They only wait for the policy service; more in flight fill its batches better.
_JOBS = 64
# Jobs come one by one, and no episode waits for a vote: short questions wait for so long for others to go with.
_LINGER_S = 0.02


def _config(settings: Settings) -> RunConfig:
    return load(settings.config) if settings.config else RunConfig()


def judge_of(settings: Settings, config: RunConfig) -> tuple[JudgeApi, PolicyClient]:
    """Return the handler of `POST /v1/judge`, and the model that it asks: the reward model, or a policy that judges itself."""
    from services.reward.app import JudgeApi
    from triforge.clients.policy import PolicyClient

    role = "policy" if config.judge_is_policy else "reward"
    policy = PolicyClient.from_settings(settings, role)
    api = JudgeApi(
        policy.generate_many,
        sampling=config.models.reward.sampling(),
        votes=config.reward.votes,
        prompt=config.reward.prompt,
        hindsight="episode" in config.reward.shows,
        deadline_s=config.reward.deadline_s,
    )
    return api, policy


def api() -> int:
    """Serve `POST /v1/judge`."""
    import uvicorn

    from services.reward.app import create_app
    from triforge.web.guard import entrance_of
    from triforge.web.server import config_of

    settings = Settings.from_env()
    config = _config(settings)
    entrance = entrance_of(settings)

    async def serve() -> None:
        api, policy = judge_of(settings, config)

        async def ready() -> None:
            await policy.weights()

        app = create_app(api=api, ready=ready, max_body=settings.max_body, entrance=entrance)
        port = urlsplit(settings.reward_url).port or 8002
        try:
            await uvicorn.Server(config_of(app, settings.host, port)).serve()
        finally:
            await policy.close()

    asyncio.run(serve())
    return 0


def judge_worker(concurrency: int) -> int:
    """Work on the queue `judge` until SIGTERM."""
    from services.reward.worker import JudgeWorker, scorer_of
    from triforge.broker import JUDGE_QUEUE, JUDGE_TASK, RedisBroker, Worker
    from triforge.clients.policy import ModelClients
    from triforge.metrics import serve_metrics
    from triforge.sandbox.client import shared
    from triforge.types import JudgeTask

    settings = Settings.from_env()
    settings.require_secret()
    reward = _config(settings).reward
    scorer_of(reward.kind)
    if reward.chosen.needs_programs:
        shared().check()  # better no worker than one that can run no program
    serve_metrics(
        settings, service="reward", process="judge-worker", queue=JUDGE_QUEUE, slots=concurrency
    )
    worker = Worker(settings.redis_url, JUDGE_QUEUE)

    async def build() -> JudgeWorker:
        judges = ModelClients(settings, "reward", linger_s=_LINGER_S)
        broker = RedisBroker(settings.redis_url, lease_s=settings.lease_s)
        return JudgeWorker(broker=broker, generate_many=judges.generate_many, sandbox=shared())

    judge = worker.run(build())
    worker.register(JUDGE_TASK, JudgeTask, judge.judge)
    worker.serve(concurrency=concurrency)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.reward", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("api", help="serve POST /v1/judge")
    worker = commands.add_parser("judge-worker", help="work on the queue judge")
    worker.add_argument("--concurrency", type=int, default=_JOBS, help="jobs at a time")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    begin("reward", options.command)
    try:
        if options.command == "api":
            return api()
        return judge_worker(options.concurrency)
    except TriforgeError as error:
        logging.getLogger(__name__).error("%s", error.detail)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
