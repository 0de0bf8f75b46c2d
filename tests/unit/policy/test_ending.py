"""How a service ends: nothing new, what runs may end, and no longer than it may take."""

from __future__ import annotations

import asyncio

import httpx

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


def busy(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.headers.get("retry-after")


async def test_an_ending_service_refuses_what_is_new_and_answers_what_runs(
    make_service: MakeService,
) -> None:
    service = await started(make_service)
    async with service.client() as client:
        asked = asyncio.create_task(client.post("/v1/generate", json=GO))
        await running(service)
        ending = asyncio.create_task(service.gateway.drain(60.0))
        await asyncio.sleep(0)
        assert busy(await client.get("/readyz")) == (503, "5")
        assert busy(await client.post("/v1/generate", json=GO)) == (503, "5")
        chat = {"messages": GO["requests"][0]["messages"]}
        assert busy(await client.post("/v1/chat/completions", json=chat)) == (503, "5")
        assert not ending.done()
        service.fakes[0]._go.set()
        assert (await asked).status_code == 200
        await ending


async def test_what_has_not_ended_in_time_is_given_up_with_a_word_and_ended_at_the_engine(
    make_service: MakeService,
) -> None:
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
