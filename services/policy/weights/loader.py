"""Getting the weights of a folder into one engine, and verifying that it holds them.

    pause ──► load ──► verify ──► continue
               │         │
               └─────────┴── failed: the weights before are put back, from their folder, before any request goes on
                             silent: nobody hears that or anything else; the engine is looked at when it answers again

Ways to load: `disk`, the engine reads the folder; a seat in a broadcast of the learner. An engine that cannot take part in a
broadcast reads the folder. Whatever the way, the folder is the record, and what the engine shows is compared with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from pydantic import ValidationError

from services.policy.engines.pool import Member
from services.policy.engines.probe import verify_probe
from services.policy.engines.protocol import Engine, PauseMode
from services.policy.weights.adapters import unload, verify_adapter
from services.policy.weights.folder import Version, compare_rows
from triforge.clients.transport import UnreachableError, http_client, parse_json, request
from triforge.errors import PolicyError, TriforgeError, WeightsError
from triforge.types import BroadcastOffer

_log = logging.getLogger(__name__)
_API = "/v1/broadcasts"
_API_TIMEOUT_S = 30.0

# Called when an engine has shown the weights, and before its requests go on; returns when they may.
Shown = Callable[[], Awaitable[None]]
VerifyBy = Literal["tensors", "info"]
Way = Literal["disk", "distributed"]


@dataclass(slots=True)
class Seat:
    """An engine's place in a broadcast: the groups of all parts, and its first rank in each of them.

    `end` ends the broadcast for everybody in it. Who leaves before it is `done` does that: the others would wait.
    """

    offers: tuple[BroadcastOffer, ...]
    rank: int
    end: Callable[[], Awaitable[object]]
    done: bool = False

    async def leave(self) -> None:
        """The engine takes no part any more."""
        if not self.done:
            self.done = True
            await self.end()


@dataclass(frozen=True, slots=True)
class Loaded:
    """How it went. `clean` says that the engine holds whole weights, new or old."""

    failure: TriforgeError | None = None
    clean: bool = True
    missed_broadcast: bool = False


async def at_once() -> None:
    """Nobody holds the requests of an engine that has shown its weights."""


class WeightLoader:
    """Loads weights into engines.

    Paused `in_place`, requests keep the keys of the old weights, and the engine's cache is not flushed but left to them: SGLang
    refuses to flush it while requests hold it. `timeout_s` is the longest time that a folder, a broadcast or an adapter may take.
    """

    def __init__(
        self,
        *,
        way: Way = "disk",
        pause_mode: PauseMode = "retract",
        verify_by: VerifyBy = "tensors",
        timeout_s: float = 300.0,
    ) -> None:
        self.way = way
        self._verify_by = verify_by
        self._timeout_s = timeout_s
        self._pause_mode: PauseMode = pause_mode
        self._flush = pause_mode != "in_place"
        self._silent: set[str] = set()  # engines that cannot show tensors, logged once

    async def load(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        seat: Seat | None = None,
        shown: Shown = at_once,
    ) -> Loaded:
        """Make an engine serve `wanted`, or `before` again if that fails; never raises.

        Its requests are held meanwhile, but not for an adapter over a base that it holds.
        """
        under = before and before.below
        if wanted.base is None:
            return await self._load_model(member, wanted, under, seat, shown)
        engine = member.engine
        try:
            moved = under is None or (await engine.info()).version != wanted.base.number
        except TriforgeError as error:
            return Loaded(error, clean=False)
        if moved:
            result = await self._load_model(member, wanted.base, under)
            if result.failure is not None:
                return result
        try:
            await self._load_adapter(engine, wanted)
        except UnreachableError as error:
            return Loaded(error, clean=False)
        except TriforgeError as error:
            await unload(engine, wanted.adapter)
            with contextlib.suppress(TriforgeError):
                if moved:
                    async with self._paused(member):
                        return Loaded(error, clean=await self._put_back(engine, under))
            return Loaded(error, clean=not moved)
        await shown()
        return Loaded()

    async def _load_adapter(self, engine: Engine, wanted: Version) -> None:
        if not wanted.adapter:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await engine.load_adapter(wanted.adapter, wanted.uri)
                await verify_adapter(engine, wanted, believed=self._verify_by == "info")
        except TimeoutError:
            raise PolicyError(
                f"engine {engine.url}: did not load and show adapter {wanted.uri} within {self._timeout_s:g} s "
                "(TRIFORGE_HANDOVER_TIMEOUT_S)"
            ) from None

    @contextlib.asynccontextmanager
    async def _paused(self, member: Member) -> AsyncIterator[None]:
        begun, answers = time.monotonic(), True
        await member.engine.pause(self._pause_mode)
        try:
            yield
        except UnreachableError:
            answers = False
            raise
        finally:
            if answers:
                await member.engine.resume()
            member.paused_s += time.monotonic() - begun

    async def _load_model(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        seat: Seat | None = None,
        shown: Shown = at_once,
    ) -> Loaded:
        missed = proven = False
        try:
            async with self._paused(member):
                try:
                    missed = await self._put(member.engine, wanted, seat)
                    proven = await self.verify(member.engine, wanted)
                except UnreachableError:
                    raise
                except TriforgeError as error:
                    return Loaded(error, await self._put_back(member.engine, before), missed)
                await shown()
            await self.prove(member.engine, wanted, shown=proven)
        except TriforgeError as error:
            return Loaded(error, clean=False, missed_broadcast=missed)
        return Loaded(missed_broadcast=missed)

    async def _put_back(self, engine: Engine, before: Version | None) -> bool:
        """Whether the engine holds the weights from before again; if not, its requests are ended."""
        try:
            if before is not None and before.uri:
                await self._put(engine, before, None)
                await self.verify(engine, before)
                return True
        except TriforgeError as error:
            _log.warning(
                "engine %s: the weights before cannot be put back: %s", engine.url, error.detail
            )
        with contextlib.suppress(TriforgeError):
            await engine.abort_all()
        return False

    async def _put(self, engine: Engine, wanted: Version, seat: Seat | None) -> bool:
        """Put the weights in; True if a broadcast failed and the folder was read instead."""
        if seat is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await engine.load_broadcast(
                        seat.offers, seat.rank, wanted.number, flush=self._flush
                    )
                seat.done = True
                return False
            except UnreachableError:
                await seat.leave()
                raise
            except (TriforgeError, TimeoutError) as error:
                reason = error.detail if isinstance(error, TriforgeError) else "it took too long"
                _log.warning("engine %s leaves the broadcast: %s", engine.url, reason)
                await seat.leave()
        try:
            async with asyncio.timeout(self._timeout_s):
                await engine.load_folder(wanted.uri, wanted.number, flush=self._flush)
        except TimeoutError:
            raise UnreachableError(
                f"engine {engine.url}: did not load {wanted.uri} within {self._timeout_s:g} s (TRIFORGE_HANDOVER_TIMEOUT_S)"
            ) from None
        return seat is not None

    async def ensure_adapter(self, engine: Engine, wanted: Version) -> None:
        """Pass if an engine that holds the base of `wanted`, and is not paused, has its adapter, now or already."""
        if wanted.base is None:
            return
        try:
            await verify_adapter(engine, wanted, believed=self._verify_by == "info")
        except UnreachableError:
            raise
        except TriforgeError:
            await self._load_adapter(engine, wanted)

    async def verify(self, engine: Engine, wanted: Version) -> bool:
        """Raise PolicyError unless the engine says the version, and shows the values of `wanted`: whether it could."""
        found = await engine.info()
        if found.version != wanted.number:
            raise PolicyError(
                f"engine {engine.url}: was asked to serve weight version {wanted.number}, serves {found.version}"
            )
        if self._verify_by == "info":
            return True
        shown = 0
        for rows in wanted.rows:
            copies = await engine.rows(rows.name, rows.count)
            if copies is None:
                continue
            shown += 1
            try:
                for given in copies:
                    compare_rows(rows, given)
            except WeightsError as error:
                raise PolicyError(
                    f"engine {engine.url}: says that it serves weight version {wanted.number}, but {error.detail}; "
                    "it is not believed (TRIFORGE_WEIGHTS_VERIFY=info takes an engine's word, e.g. of one that quantises)"
                ) from error
        return shown > 0

    async def prove(self, engine: Engine, wanted: Version, *, shown: bool) -> None:
        """Ask an engine that could show no rows for the probe; one that is paused would not answer. Errors: see `verify`."""
        if shown:
            return
        if wanted.probe is None:
            if wanted.rows and engine.url not in self._silent:
                self._silent.add(engine.url)
                _log.warning("engine %s cannot show its tensors; its word is taken", engine.url)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await verify_probe(engine, wanted.probe, f"weight version {wanted.number}")
        except TimeoutError:
            raise PolicyError(
                f"engine {engine.url}: did not answer the probe of version {wanted.number} within {self._timeout_s:g} s "
                "(TRIFORGE_HANDOVER_TIMEOUT_S)"
            ) from None


class Broadcasts:
    """Client of the APIs of learners' ranks, where broadcasts are arranged, each to at most `together` engines."""

    def __init__(
        self,
        *,
        admin_api_key: str = "",
        together: int = 8,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._key, self._together, self._transport = admin_api_key, together, transport

    async def seats(
        self, engines: Sequence[Engine], wanted: Version, handover: Sequence[str]
    ) -> dict[str, Seat]:
        """Ask the learner for broadcasts to these engines; the seats, by address, of those that can take part."""
        counts = await asyncio.gather(*map(_receivers, engines))
        able = [(e.url, count) for e, count in zip(engines, counts, strict=True) if count]
        groups = [able[i : i + self._together] for i in range(0, len(able), self._together)]
        found = await asyncio.gather(
            *(self._arrange(n, group, wanted, handover) for n, group in enumerate(groups))
        )
        return {url: seat for seats in found for url, seat in seats.items()}

    async def _arrange(
        self,
        number: int,
        engines: Sequence[tuple[str, int]],
        wanted: Version,
        handover: Sequence[str],
    ) -> dict[str, Seat]:
        """One broadcast. Each begins with another rank's part, so that all ranks send side by side."""
        ranks = {url: 1 + sum(n for _, n in engines[:i]) for i, (url, _) in enumerate(engines)}
        body = {
            "uri": wanted.uri, "digest": wanted.digest, "parts": len(handover),
            "receivers": sum(n for _, n in engines),
        }  # fmt: skip
        turn = number % len(handover)
        calls = [
            self._ask(api, "POST", _API, body | {"part": part}) for part, api in enumerate(handover)
        ]
        try:
            answers = await asyncio.gather(*calls)
            offers = [BroadcastOffer.model_validate(answer) for answer in answers]
        except (TriforgeError, ValidationError) as error:
            _log.warning("engines %s take no part in a broadcast: %s", ", ".join(ranks), error)
            return {}
        places = [(api, f"{_API}/{o.group}") for api, o in zip(handover, offers, strict=True)]
        end = functools.partial(self._end, places)
        held = tuple(offer for offer in offers[turn:] + offers[:turn] if offer.buckets)
        return {url: Seat(held, rank, end) for url, rank in ranks.items()}

    async def _ask(self, api: str, method: str, path: str, body: Any = None) -> Any:
        async with http_client(
            api, timeout_s=_API_TIMEOUT_S, transport=self._transport, api_key=self._key
        ) as client:
            return parse_json(await request(client, method, path, body=body))

    async def _end(self, places: Sequence[tuple[str, str]]) -> None:
        """Tell the ranks that nobody listens any more."""

        async def one(api: str, path: str) -> None:
            with contextlib.suppress(TriforgeError):  # it has ended, or the rank is gone
                await self._ask(api, "DELETE", path)

        await asyncio.gather(*(one(*place) for place in places))


async def _receivers(engine: Engine) -> int:
    try:
        return await engine.receivers()
    except TriforgeError as error:
        _log.warning("engine %s takes no part in a broadcast: %s", engine.url, error)
        return 0
