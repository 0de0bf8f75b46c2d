"""The service as it is deployed: its API and its adapt worker as processes, a language model behind an OpenAI-style API."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from services.trainer.runs.store import RunStore
from triforge.broker import Broker
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.config import RunConfig
from triforge.errors import UnavailableError
from triforge.store.database import open_database
from triforge.types import GenerateSpec, PoolRequest, TaskOutcome


def first_answer(schema: dict[str, Any]) -> dict[str, Any]:
    """The first answer that a schema of closed choices allows."""
    return {name: field["enum"][0] for name, field in schema["properties"].items()}


class Talker(BaseHTTPRequestHandler):
    """Answers with the first change that the schema allows."""

    def do_GET(self) -> None:
        self._say({"data": [{"id": "smol"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = "It went wrong."
        if "response_format" in body:
            text = json.dumps(first_answer(body["response_format"]["json_schema"]["schema"]))
        self._say({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    def _say(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def language_model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Talker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def process(command: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the service; it must end by itself and cleanly on SIGTERM."""
    started = subprocess.Popen(
        [sys.executable, "-m", "services.env_adapter", command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield started
        started.send_signal(signal.SIGTERM)
        output, _ = started.communicate(timeout=30)
        assert started.returncode in (0, -signal.SIGTERM), output.decode()
    finally:
        if started.poll() is None:
            started.kill()
            started.communicate()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


async def test_api_and_adapt_worker_turn_an_outcome_into_a_pending_rewrite(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with language_model() as model:
        environment = {
            "TRIFORGE_REDIS_URL": redis_url,
            "TRIFORGE_DATABASE_URL": f"sqlite:///{tmp_path}/deep/store.sqlite",
            "TRIFORGE_ENV_ADAPTER_URL": url,
            "TRIFORGE_REWRITER_MODEL_URL": model,
        }
        # Both start at once on a database that does not exist yet.
        with (
            process("api", environment) as api,
            process("adapt-worker", environment) as worker,
        ):
            client = EnvAdapterClient(url)
            request = PoolRequest(
                name="kitchen", environment="household", generate=GenerateSpec(count=2, seed=5)
            )
            async with asyncio.timeout(60):
                while True:
                    try:
                        pool = await client.create_pool(request, key="once")
                        break
                    except UnavailableError:
                        assert api.poll() is None
                        await asyncio.sleep(0.1)
                run = RunStore(open_database(environment["TRIFORGE_DATABASE_URL"])).create(
                    name="r", pool_id=pool.id, config=RunConfig().model_dump(mode="json")
                )
                first, _ = [task async for task in client.tasks(pool.id)]
                await broker.send(
                    TaskOutcome(
                        group_id="g",
                        run_id=run.id,
                        step=0,
                        pool_id=pool.id,
                        task_id=first.id,
                        purpose="train",
                        successes=0,
                        measured=8,
                        rollouts=8,
                        policy_version=0,
                    )
                )
                while not (found := await client.proposals(pool.id)):
                    assert worker.poll() is None
                    await asyncio.sleep(0.1)
            (proposal,) = found
            assert proposal.state == "pending", proposal
            assert all(check.passed for check in proposal.checks)
            lineage = await client.lineage(first.id)
            assert [v.task.state for v in lineage.versions] == ["active", "pending"]
            await client.close()
