"""How a service ends: nothing new, what runs may end, and no longer than it may take."""

from __future__ import annotations

import asyncio

from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import MakeService, Service, start

GO = {"requests": [{"messages": [{"role": "user", "content": "go"}]}]}


async def started(make_service: MakeService) -> Service:
    service = await start(make_service, FakeEngine())
    service.fakes[0]._go.clear()
    return service


async def running(service: Service) -> None:
    while not service.fakes[0].running:  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0)


async def test_drain_deadline_aborts_requests(make_service: MakeService) -> None:
    service = await started(make_service)
    async with service.client() as client:
        asked = asyncio.create_task(client.post("/v1/generate", json=GO))
        await running(service)
        await service.gateway.drain(0.01)
        response = await asked
    assert (response.status_code, response.json()["type"]) == (503, "urn:triforge:unavailable")
    assert "shutting down" in response.json()["detail"]
    await service.pool.close()
    assert "/abort_request" in service.fakes[0].paths()
