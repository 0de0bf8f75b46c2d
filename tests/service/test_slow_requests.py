"""Who begins a request has to go on with it; who waits for the service is never late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.service.on_the_wire import Broker
from triforge.web.server import BODY_LEAST, LimitedProtocol, careful

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


class Timer:
    """One that loops when it is told to."""

    def __init__(self, loop: Callable[[], None]) -> None:
        self.loop = loop
        self.set = True

    def cancel(self) -> None:
        self.set = False


class Loop:
    """Runs tasks; its time stands still."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, _: float, loop: Callable[[], None]) -> Timer:
        self.timers.append(Timer(loop))
        return self.timers[-1]

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def waits(self) -> bool:
        return any(timer.set for timer in self.timers)

    def loop(self) -> None:
        """The time of every timer that is set is over."""
        for timer in [timer for timer in self.timers if timer.set]:
            timer.set = False
            timer.loop()


class Service:
    """An app that reads and answers when it is told to."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        await self.may_read.wait()
        more = not self.may_answer.is_set()
        while more:
            message = await receive()
            more = message.get("more_body", False)
        await self.may_answer.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})
        self.ended.set()


class Connection:
    """A connection to a service, with the time in the test's hands."""

    def __init__(self, *, reads: bool = True, answers: bool = False) -> None:
        self.service, self.loop, self.broker = Service(), Loop(), Broker()
        if reads:
            self.service.may_read.set()
        if answers:
            self.service.may_answer.set()
        config = uvicorn.Config(self.service, log_level="critical", **careful())
        self.protocol = LimitedProtocol(config, ServerState(), {}, _loop=self.loop)
        self.protocol.connection_made(self.broker)

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.protocol.data_received(part)
            for _ in range(5):  # the service's turn
                await asyncio.sleep(0)

    def refused(self) -> int:
        """Status of the only answer, if the connection is closed behind it."""
        assert self.broker.hung_up
        assert self.broker.written.count(b"HTTP/1.1 ") == 1
        head, _, body = self.broker.written.partition(b"\r\n\r\n")
        assert json.loads(body)["detail"]
        return int(head.split()[1])


@pytest.mark.parametrize(
    "parts", [(), (b"P",), (b"POST / HTTP/1.1\r\n", b"A: b\r\n", b"C: d\r\n"), (b"\r\n",)]
)
async def test_headers_that_do_not_come_are_not_waited_for(parts: tuple[bytes, ...]) -> None:
    connection = Connection()
    await connection.say(*parts)
    connection.loop.loop()
    assert connection.refused() == 408


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    connection = Connection()
    await connection.say(HEAD, b"a", b"b")
    connection.loop.loop()
    assert connection.refused() == 408


async def test_a_body_that_drips_is_not_waited_for_and_one_that_comes_is() -> None:
    connection = Connection()
    await connection.say(HEAD, b"a" * BODY_LEAST)
    connection.loop.loop()
    assert not connection.broker.hung_up
    await connection.say(b"a" * (BODY_LEAST - 1))
    connection.loop.loop()
    assert connection.refused() == 408


async def test_a_body_in_chunks_has_to_come_too() -> None:
    connection = Connection()
    await connection.say(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    connection.loop.loop()
    assert connection.refused() == 408


async def test_a_body_that_the_service_does_not_read_is_nobodys_fault() -> None:
    connection = Connection(reads=False)
    await connection.say(HEAD, b"a" * 100_000)
    for _ in range(3):
        connection.loop.loop()
    assert not connection.broker.hung_up
    connection.service.may_read.set()
    await connection.say()


async def test_who_waits_for_leave_to_send_a_body_is_not_late() -> None:
    connection = Connection(reads=False)
    await connection.say(HEAD.replace(b"Host: x", b"Expect: 100-continue"))
    connection.loop.loop()
    assert not connection.broker.hung_up
    connection.service.may_read.set()
    await connection.say(b"")
    assert connection.broker.written == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_service_may_take_its_time_for_an_answer_and_the_next_request_may_have_begun() -> (
    None
):
    connection = Connection()
    await connection.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not connection.loop.waits()
    await connection.say(b"GET / HTTP/1.1\r\n")
    connection.loop.loop()
    assert not connection.broker.hung_up
    connection.service.may_answer.set()
    await connection.service.ended.wait()
    assert connection.broker.written.startswith(b"HTTP/1.1 200")


async def test_a_body_that_is_refused_has_to_come_or_the_connection_ends_without_a_second_answer() -> (
    None
):
    connection = Connection(answers=True)
    await connection.say(HEAD)
    await connection.service.ended.wait()
    assert connection.broker.written.count(b"HTTP/1.1 200") == 1
    await connection.say(b"a")
    connection.loop.loop()
    assert connection.broker.hung_up
    assert connection.broker.written.count(b"HTTP/1.1 ") == 1


async def test_what_is_no_http_behind_headers_is_answered_as_a_problem() -> None:
    connection = Connection()
    await connection.say(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n")
    assert connection.refused() == 400


async def test_no_answer_is_cut_in_two_by_what_comes_behind_its_request() -> None:
    connection = Connection()
    await connection.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x01\r\n\r\n")
    assert connection.broker.hung_up
    assert connection.broker.written == b""


async def test_a_connection_that_ends_is_not_waited_for() -> None:
    connection = Connection()
    await connection.say(HEAD)
    assert connection.loop.waits()
    connection.protocol.connection_lost(None)
    assert not connection.loop.waits()
    await connection.say()
