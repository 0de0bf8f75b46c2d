"""kombu's Redis transport, steadied: a message that nobody could read is logged and dropped, and the worker lives on.

A worker acknowledges the jobs that ended in one turn of its loop together.

As it comes, bytes in a queue that are no message of kombu's end the worker that takes them, and with it everything else that
it works on. Whoever sent a job that is dropped here notices that nobody works on it and sends it again.
"""

from __future__ import annotations

import logging
from json import JSONDecodeError
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual

log = logging.getLogger(__name__)

_SHOWN = 200  # characters of an unreadable message that the log shows


class SteadyQoS(redis.QoS):
    """Keeps acknowledgements until the worker's loop is about to wait; without a loop they leave at once.

    One that is lost brings its job back, which every job bears.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ended: list[str] = []

    def ack(self, delivery_tag: str) -> None:
        """Called in the thread of the worker's loop."""
        cycle = getattr(self.channel.connection, "cycle", None)
        if not isinstance(cycle, SteadyPoller) or not cycle.serves(self.channel):
            super().ack(delivery_tag)
            return
        self._ended.append(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)  # its place is free

    def settle(self) -> None:
        """Send what was kept."""
        if not self._ended:
            return
        tags, self._ended = self._ended, []
        channel: Any = self.channel
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()
        except (*channel.connection_errors, *channel.connection.channel_errors) as error:
            log.error("could not acknowledge %d jobs, which will come back: %s", len(tags), error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """At the end of a channel: what has ended does not go back."""
        self.settle()
        super().restore_unacked_once(stderr)


class SteadyPoller(redis.MultiChannelPoller):
    """Has acknowledgements sent before it waits for messages."""

    _in_loop = False
    _channels: set[Any]

    def serves(self, channel: Any) -> bool:
        """Whether a loop calls `on_poll_start` for a channel each turn. Not for one whose connection was lost."""
        return self._in_loop and channel in self._channels

    def on_poll_init(self, poller: Any) -> Any:
        """A loop begins."""
        self._in_loop = True
        return super().on_poll_init(poller)

    def on_poll_start(self) -> None:
        """A turn of the loop, before it waits."""
        self._settle(*self._channels)
        super().on_poll_start()

    def discard(self, channel: Any) -> None:
        """A channel ends."""
        self._settle(channel)
        super().discard(channel)

    def close(self) -> None:
        """The connection ends."""
        self._settle(*self._channels)
        super().close()

    def _settle(self, *channels: Any) -> None:
        for channel in channels:
            if isinstance(channel._qos, SteadyQoS):
                channel._qos.settle()


class SteadyChannel(redis.Channel):
    """Drops what is no JSON. Keeps its client: kombu would build one for every message sent, taken or acknowledged."""

    QoS = SteadyQoS
    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc]
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc]
        return self._kept

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (JSONDecodeError, UnicodeDecodeError) as error:  # it has left the queue already
            log.error("dropped a message that is no JSON: %s", error)
            return True


class SteadyTransport(redis.Transport):
    """Drops what is JSON and no message of kombu's."""

    Channel = SteadyChannel

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cycle = SteadyPoller()

    def _deliver(self, message: Any, queue: str | None) -> None:
        problem = _problem(message, self)
        if problem:
            log.error(
                "dropped a message of queue %s: %s; it began with %r",
                queue, problem, str(message)[:_SHOWN],
            )  # fmt: skip
            return
        super()._deliver(message, queue)


def _problem(message: Any, transport: SteadyTransport) -> str:
    """Why kombu could not make a message of it; empty if it can."""
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        return "it has no properties"
    properties = message["properties"]
    if not isinstance(properties.get("delivery_tag"), str):
        return "it has no delivery tag"
    if not {"exchange", "routing_key"} <= set(properties.get("delivery_info") or ()):
        return "it does not say where it was sent"
    if not isinstance(message.get("headers", {}), dict):
        return "its headers are no table"
    body, encoding = message.get("body"), properties.get("body_encoding")
    if body is not None and not isinstance(body, str):
        return "its body is no text"
    try:
        for channel in (transport.channels or [])[:1]:
            channel.decode_body(body or "", encoding)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its body cannot be read: {error}"
    return ""


def use_steady_transport() -> None:
    """From now on `redis://` and `rediss://` are spoken by this transport."""
    TRANSPORT_ALIASES["redis"] = TRANSPORT_ALIASES["rediss"] = f"{__name__}:SteadyTransport"
