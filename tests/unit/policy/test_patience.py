"""How long answers are waited for: as long as the deployment's knob says, at every place on the way."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.adaptation.endpoints import endpoint
from services.policy.__main__ import build_pool
from triforge.clients.policy import PolicyClient
from triforge.config import Settings


@pytest.mark.parametrize("knob", [30.0, 600.0, 3600.0])
async def test_an_engine_may_take_as_long_as_the_knob_says(knob: float) -> None:
    pool = build_pool(Settings(request_s=knob))
    (member,) = pool.members
    engine: Any = member.engine
    assert member.request_s == knob
    # the pool's own limit ends a request first: it says which knob it is
    assert knob < engine._post.client.timeout.read < knob + 60.0
    assert engine._control.timeout.read >= max(knob, 600.0), "a large folder is read for long"
    await pool.close()


@pytest.mark.parametrize("knob", [30.0, 600.0, 3600.0])
async def test_whoever_asks_a_room_waits_longer_than_the_room_does(knob: float) -> None:
    settings = Settings(request_s=knob, queue_s=45.0)
    async with PolicyClient.from_settings(settings, "acts") as client:
        told: Any = client
        assert knob + 45.0 < told._http.timeout.read < knob + 45.0 + 60.0
    other: Any = endpoint("https://h/v1", settings)
    assert other._http.timeout.read == knob
    await other.close()
