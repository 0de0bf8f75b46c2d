"""How long answers are waited for: as long as the deployment's option says, at every place on the way."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from services.env_adapter.adaptation.endpoints import endpoint
from services.policy.__main__ import build_pool
from services.policy.engines.pool import Member
from services.policy.engines.sglang import PAUSE_TIMEOUT_S, SGLangEngine
from services.policy.weights.loader import WeightLoader
from triforge.clients.policy import PolicyClient
from triforge.config import Settings
from triforge.types import WeightsUpdate


@pytest.mark.parametrize("option", [30.0, 3600.0])
async def test_an_engine_may_take_as_long_as_the_option_says(option: float) -> None:
    pool = build_pool(Settings(request_s=option))
    (member,) = pool.members
    engine: Any = member.engine
    assert pool._limits.request_s == option
    # the pool's own limit ends a request first: it says which option it is
    assert option < engine._data.timeout.read < option + 60.0
    assert engine._control.timeout.read >= max(option, 600.0), "a large folder is read for long"
    await pool.close()


async def test_weights_may_take_as_long_as_their_option_says_at_every_place() -> None:
    option = 3600.0
    waits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        return httpx.Response(
            200, json={"role": "policy", "version": 1, "uri": "", "engines": 1, "ready": 1}
        )

    settings = Settings(handover_timeout_s=option)
    pool = build_pool(settings)
    engine: Any = pool.members[0].engine
    assert engine._control.timeout.read > option
    await pool.close()
    transport = httpx.MockTransport(answer)
    async with PolicyClient.from_settings(settings, "policy", transport=transport) as client:
        await client.update_weights(WeightsUpdate(version=1, uri="/v1"))
        await client.weights()
    assert waits[0] > 2 * option, "for the first engine, then as long for the others"
    assert waits[1] < 700.0


@pytest.mark.parametrize("option", [30.0, 3600.0])
async def test_a_client_waits_longer_than_the_service_does(option: float) -> None:
    settings = Settings(request_s=option, queue_s=45.0)
    async with PolicyClient.from_settings(settings, "policy") as client:
        inner: Any = client
        assert option + 45.0 < inner._http.timeout.read < option + 45.0 + 60.0
    other: Any = endpoint("https://h/v1", settings)
    assert other._http.timeout.read == option
    await other.close()


async def test_an_engine_that_hangs_is_not_waited_for_as_long_as_for_a_folder() -> None:
    waits: dict[str, float] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        waits[request.url.path] = request.extensions["timeout"]["read"]
        return httpx.Response(200, json={"success": True})

    engine = SGLangEngine("http://e", transport=httpx.MockTransport(answer), timeout_s=1800.0)
    async with WeightLoader()._paused(Member(engine)):
        await engine.load_folder("/v1", 1, flush=True)
    assert waits == {
        "/pause_generation": PAUSE_TIMEOUT_S,
        "/server_info": PAUSE_TIMEOUT_S,
        "/update_weights_from_disk": 1800.0,
        "/continue_generation": PAUSE_TIMEOUT_S,
    }
    await engine.close()
