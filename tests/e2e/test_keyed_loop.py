"""The whole loop where keys are asked for: services and workers show the services' secret, people their keys, others nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Deployment
from triforge.access.keys import KeyStore
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.store.database import Database
from triforge.types import GenerateSpec, PoolRequest


@pytest.fixture
def deployment(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    monkeypatch.setenv("TRIFORGE_AUTH", "keys")
    deployment = Deployment.made(tmp_path, tiny_model)
    deployment.start()
    yield deployment
    deployment.close()


async def test_a_tenants_run_goes_round_the_loop_and_strangers_see_nothing(
    deployment: Deployment,
) -> None:
    settings = deployment.settings()
    store = KeyStore(Database(settings.database_url))
    key = store.create("e2e", scope="submit", tenant="blue")[1]
    other = store.create("other", scope="admin", tenant="red")[1]

    pools = EnvAdapterClient(settings.env_adapter_url, api_key=key)
    trainer = TrainerClient(settings.trainer_url, api_key=key)
    made = await pools.create_pool(
        PoolRequest(
            name="e2e", environment="household", options={"wording": "terse"},
            generate=GenerateSpec(count=8, heldout=4, seed=5),
        )
    )  # fmt: skip
    run = await trainer.submit("e2e")
    assert (run.tenant, made.tenant) == ("blue", "blue")
    async for _, event in trainer.events(run.id):
        assert event.run_id == run.id
    ended = await trainer.run(run.id)
    assert (ended.status, ended.step) == ("finished", 1), ended.reason

    apis = (settings.env_adapter_url, settings.trainer_url, settings.policy_model_url)
    async with httpx.AsyncClient() as http:
        for url, path in zip(apis, ("/v1/pools", "/v1/runs", "/v1/weights"), strict=True):
            assert (await http.get(f"{url}{path}")).status_code == 401
            seen = await http.get(f"{url}{path}", headers={"Authorization": f"Bearer {other}"})
            assert seen.status_code == 200
            assert run.id not in seen.text or path == "/v1/weights"
            assert made.id not in seen.text
        moved = await http.post(
            f"{settings.policy_model_url}/v1/weights",
            json={},
            headers={"Authorization": f"Bearer {other}"},
        )
        assert moved.status_code == 403
    await pools.close()
    await trainer.close()

    secret = key.split("_", 2)[2]
    for log in (deployment.state / "logs").iterdir():
        assert secret not in log.read_text(errors="replace"), log.name
    listed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "triforge", "run", "list", "--state", str(deployment.state)],
        env={**os.environ, "TRIFORGE_KEY": key, "COLUMNS": "200"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.id in listed.stdout
