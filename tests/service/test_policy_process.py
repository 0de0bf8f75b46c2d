"""`python -m services.policy`: it ends as it should."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fake_engine import FakeEngine
from tests.service.test_policy_http import serving
from triforge.clients.transport import get_json, http_client
from triforge.testing.model_folders import words_folder

ROOT = Path(__file__).parents[2]


def environment(**settings: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRIFORGE_")}
    return {**kept, "PYTHONPATH": str(ROOT), **{f"TRIFORGE_{k}": v for k, v in settings.items()}}


@contextmanager
def process(**settings: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "services.policy"],
        cwd=ROOT,
        env=environment(**settings),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate(timeout=30)


async def test_a_service_that_ends_answers_running_requests_and_refuses_new_ones(
    tmp_path: Path,
) -> None:
    model = words_folder(tmp_path, ["go"])
    fake = FakeEngine(answer=lambda *_: [5, 1], wait_at=1, model_path=str(model))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    async with serving(fake) as (deep, _), http_client(url) as client:
        settings = {"POLICY_MODEL_URL": url, "ENGINES": deep, "MODEL": str(model), "DRAIN_S": "60"}
        with process(**settings) as started:
            await get_json(client, "/readyz", deadline_s=60)
            body = {"requests": [{"messages": [{"role": "user", "content": "go"}]}]}
            asked = asyncio.create_task(client.post("/v1/generate", json=body))
            await fake.reached.wait()
            started.terminate()
            while (await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - a signal takes its time
                await asyncio.sleep(0.01)
            refused = await client.post("/v1/generate", json=body)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            fake._changed.set()
            assert (await asked).status_code == 200
            assert await asyncio.to_thread(started.wait, 30) == 0
