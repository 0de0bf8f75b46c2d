"""Redis commands that travel together: what is asked while others are being answered waits for them and goes in one trip."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from triforge.errors import StorageError, TriforgeError

_MOST: Final = 64  # commands of one trip

Call = Callable[[Awaitable[Any]], Awaitable[Any]]
_Waiting = tuple[str, bytes, asyncio.Future[Any]]  # the command's name, all of it, its answer


class Convoy:
    """Sends commands in batches, one after the other, over one connection. One an event loop.

    For commands that are answered at once and may be repeated.

    Args:
        redis: the server.
        call: awaits a command; raises our errors for those of the client.
    """

    def __init__(self, redis: Any, call: Call) -> None:
        self._redis = redis
        self._call = call
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self._connection: Any = None

    async def execute(self, name: str, *arguments: str | bytes | int) -> Any:
        """The answer to a command.

        Raises:
            UnavailableError: the server is away.
            StorageError: it refuses this command.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, packed((name, *arguments)), future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await future

    async def _send(self) -> None:
        try:
            while self._waiting:
                share, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                try:
                    answers = await self._trip(share)
                except BaseException:  # the loop ends
                    for *_, future in (*share, *self._waiting):
                        future.cancel()
                    raise
                _deliver(share, answers)
        finally:
            self._sending = None

    async def _trip(self, share: list[_Waiting]) -> list[Any]:
        try:
            answers = await self._call(self._exchanged(share))
        except TriforgeError as error:
            return [type(error)(error.detail) for _ in share]
        except Exception as error:  # noqa: BLE001 (handed to whoever asked)
            return [error] * len(share)
        return [_ours(answer) if isinstance(answer, RedisError) else answer for answer in answers]

    async def _exchanged(self, share: list[_Waiting]) -> list[Any]:
        """Answers, or the errors with which the server refuses; over a connection that is kept from trip to trip.

        What a pipeline of the client does, without taking a connection out of its pool and back for each trip.
        """
        pool = self._redis.connection_pool
        if self._connection is None:
            self._connection = await pool.get_connection()
        else:
            await pool.ensure_connection(
                self._connection
            )  # the server may have closed it meanwhile
        connection = self._connection

        try:
            return await self._exchange(connection, share)
        except (RedisConnectionError, RedisTimeoutError, OSError):
            # A server that was started again has closed what is kept here, and only an answer that lacks says so.
            await connection.disconnect()
            return await self._exchange(connection, share)

    async def _exchange(self, connection: Any, share: list[_Waiting]) -> list[Any]:
        await connection.send_packed_command(b"".join(command for _, command, _ in share))
        return [await self._answer(connection, name) for name, *_ in share]

    async def _answer(self, connection: Any, name: str) -> Any:
        try:
            answer = await connection.read_response()
        except ResponseError as error:
            return error
        read = self._redis.response_callbacks.get(name)
        return answer if read is None else read(answer)


def packed(command: Sequence[str | bytes | int]) -> bytes:
    """A command as the server reads it. The client's own way takes several times as long, and every job sends a script."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        if isinstance(argument, str):
            text = argument.encode()
        else:
            text = argument if isinstance(argument, bytes) else b"%d" % operator.index(argument)
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def _deliver(share: list[_Waiting], answers: list[Any]) -> None:
    for (*_, future), answer in zip(share, answers, strict=True):
        if future.done():  # whoever asked has given up
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _ours(error: RedisError) -> StorageError:
    return StorageError(f"Redis refused a command: {error}")
