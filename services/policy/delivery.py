"""Getting the weights of a folder into one engine, and having it show that it holds them.

    pause ──► put ──► prove ──► continue
               │        │
               └────────┴── failed: the weights before are put back, from their folder, before any request goes on

Ways to put: `disk`, the engine reads the folder; `tensor`, the service sends the bytes of the folder over HTTP, so that the
engine needs no common disk; a seat in a broadcast of the learner. An engine that cannot take part in a broadcast reads the
folder. Whatever the way, the folder is the record, and the proof is made against the folder.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.policy import adapter_delivery
from services.policy.adapter_folder import AdapterProbe
from services.policy.adapters import Adapted, adapter_name
from services.policy.proof import Shown, compare
from services.policy.sglang import SGLangEngine
from services.policy.sglang_payload import payload
from services.policy.weight_folder import Weights
from triforge.clients.transport import UnreachableError
from triforge.errors import InputError, PolicyError, TriforgeError, WeightsError
from triforge.store.tensor_files import Entry, buckets, pack
from triforge.types import BroadcastOffer

_log = logging.getLogger(__name__)

BUCKET_BYTES = 64 << 20
_CONNECT_S = 5.0
_LOCAL_ENGINE = "triforge-local-engine"

PauseMode = Literal["retract", "in_place", "abort"]
Proof = Literal["tensors", "info"]
Way = Literal["disk", "distributed", "tensor"]


@dataclass(frozen=True, slots=True)
class Live:
    """A version and the folder it comes from.

    `weights` are the headers of the folder, None if this machine cannot read it. `shown` is what engines are asked for
    as a proof. An adapter has a `base`, the version below it, whose `weights` it has, and a `probe` as its proof.
    """

    version: int
    uri: str
    digest: str = ""
    weights: Weights | None = None
    shown: tuple[Shown, ...] = ()
    base: Live | None = None
    probe: AdapterProbe | None = None

    @property
    def below(self) -> Live:
        """What the engine itself has to hold."""
        return self.base or self

    @property
    def adapted(self) -> Adapted | None:
        """How requests name it; None for a whole model."""
        if self.base is None:
            return None
        return Adapted(self.version, adapter_name(self.version), self.base.version)


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine's place in a broadcast.

    `rank` is that of its first process; `leave` tells the learner that it will not come.
    """

    offer: BroadcastOffer
    rank: int
    leave: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Delivered:
    """How it went. `clean` says that the engine holds whole weights, new or old."""

    failure: TriforgeError | None = None
    clean: bool = True
    fell_back: bool = False


class Delivery:
    """Puts weights into engines, one at a time.

    Args:
        way: how; `distributed` without a seat reads the folder.
        pause_mode: what becomes of running requests. Under `in_place` they keep the keys of the old weights, and the
            engine's cache is not flushed: SGLang refuses that while requests hold it.
        proof: what an engine has to show.
        timeout_s: longest time that a broadcast may take.
    """

    def __init__(
        self,
        *,
        way: Way = "disk",
        pause_mode: PauseMode = "retract",
        proof: Proof = "tensors",
        timeout_s: float = 120.0,
    ) -> None:
        self.way = way
        self.proof = proof
        self.timeout_s = timeout_s
        self._pause_mode = pause_mode
        self._silent: set[str] = set()  # engines that cannot show tensors, said once

    async def bring(
        self, engine: SGLangEngine, wanted: Live, before: Live | None, seat: Seat | None = None
    ) -> Delivered:
        """Make an engine serve `wanted`. Its requests are held meanwhile, but not for an adapter over a base that it holds.

        Never raises.

        Args:
            engine: which.
            wanted: what it should hold.
            before: what is put back if that fails; None leaves the engine as it is then, and is not relied on.
            seat: its place in a broadcast that the learner has begun.
        """
        if wanted.base is None:
            return await self._bring_model(engine, wanted, before and before.below, seat)
        under = before and before.below
        try:
            moved = under is None or (await engine.info(paused=True)).version != wanted.base.version
            if moved:
                result = await self._bring_model(engine, wanted.base, under, None)
                if result.failure is not None:
                    return result
        except TriforgeError as error:
            return Delivered(error, clean=False)
        try:
            await self._adapt(engine, wanted)
        except UnreachableError as error:
            return Delivered(error, clean=False)
        except TriforgeError as error:
            await adapter_delivery.unload(engine, adapter_name(wanted.version))
            return Delivered(error, clean=not moved or await self._go_back(engine, under))
        return Delivered()

    async def _adapt(self, engine: SGLangEngine, wanted: Live) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                await adapter_delivery.load(engine, wanted.version, wanted.uri)
                await self._show_adapter(engine, wanted)
        except TimeoutError:
            raise PolicyError(
                f"engine {engine.url}: did not load and show adapter {wanted.uri} within {self.timeout_s:g} s "
                "(TRIFORGE_HANDOVER_TIMEOUT_S)"
            ) from None

    async def _show_adapter(self, engine: SGLangEngine, wanted: Live) -> None:
        if wanted.probe is not None:
            await adapter_delivery.show(
                engine, wanted.version, wanted.probe, believed=self.proof == "info"
            )

    async def _go_back(self, engine: SGLangEngine, under: Live | None) -> bool:
        """Whether the engine holds the model from before again."""
        try:
            async with engine.paused(self._pause_mode):
                return await self._put_back(engine, under)
        except TriforgeError:
            return False

    async def _bring_model(
        self, engine: SGLangEngine, wanted: Live, before: Live | None, seat: Seat | None
    ) -> Delivered:
        fell_back = False
        try:
            async with engine.paused(self._pause_mode):
                try:
                    fell_back = await self._put(engine, wanted, seat)
                    await self.prove(engine, wanted)
                except UnreachableError:
                    raise
                except TriforgeError as error:
                    return Delivered(error, await self._put_back(engine, before), fell_back)
        except TriforgeError as error:
            return Delivered(error, clean=False, fell_back=fell_back)
        return Delivered(fell_back=fell_back)

    async def _put_back(self, engine: SGLangEngine, before: Live | None) -> bool:
        """Whether the engine holds the weights from before again; if not, nobody gets an answer from what it holds."""
        try:
            if before is not None and before.uri:
                await self._put(engine, before, None)
                await self.prove(engine, before)
                return True
        except TriforgeError as error:
            _log.warning(
                "engine %s: the weights before cannot be put back: %s", engine.url, error.detail
            )
        with contextlib.suppress(TriforgeError):
            await engine.abort_all()
        return False

    async def _put(self, engine: SGLangEngine, wanted: Live, seat: Seat | None) -> bool:
        """Put the weights in; True if a broadcast failed and the folder was read instead.

        Raises:
            WeightsError: the engine refuses.
            UnavailableError: it is gone.
            PolicyError: it failed.
        """
        if seat is not None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    await self._receive(engine, wanted, seat)
                return False
            except UnreachableError:
                await seat.leave()
                raise
            except (TriforgeError, TimeoutError) as error:
                reason = error.detail if isinstance(error, TriforgeError) else "it took too long"
                _log.warning("engine %s leaves the broadcast: %s", engine.url, reason)
                await seat.leave()
        if self.way == "tensor" and wanted.weights is not None and wanted.weights.tensors:
            await self._send(engine, wanted, list(wanted.weights.tensors.values()))
        else:
            await self._load(engine, wanted)
        return seat is not None

    async def _load(self, engine: SGLangEngine, wanted: Live) -> None:
        body = {"model_path": wanted.uri, **self._last(wanted)}
        await engine.command("/update_weights_from_disk", body, f"the folder {wanted.uri}")

    def _last(self, wanted: Live) -> dict[str, Any]:
        """What goes with the last part of an update."""
        return {
            "weight_version": str(wanted.version),
            "flush_cache": self._pause_mode != "in_place",
        }

    async def _send(self, engine: SGLangEngine, wanted: Live, entries: Sequence[Entry]) -> None:
        info = await engine.server_info()
        local = info.get("engine") == _LOCAL_ENGINE
        copies = int(info.get("tp_size") or 1)
        parts = list(buckets(entries, BUCKET_BYTES))
        async with self._session(engine):
            for number, part in enumerate(parts, start=1):
                text = await asyncio.to_thread(_as_text, part, local)
                body = {
                    "serialized_named_tensors": [text] * copies,
                    "load_format": "safetensors" if local else None,
                    "flush_cache": False,
                } | (self._last(wanted) if number == len(parts) else {})
                what = f"tensors {part[0].name} to {part[-1].name} of {wanted.uri}"
                await engine.command("/update_weights_from_tensor", body, what)

    async def _receive(self, engine: SGLangEngine, wanted: Live, seat: Seat) -> None:
        offer = seat.offer
        group = {"group_name": offer.group}
        where = {
            "master_address": offer.address, "master_port": offer.port, "rank_offset": seat.rank,
            "world_size": offer.world_size, "backend": offer.backend,
        }  # fmt: skip
        what = f"the broadcast of {wanted.uri}"
        await _somebody_listens(offer)
        await engine.command("/init_weights_update_group", group | where, what)
        try:
            async with self._session(engine):
                for number, part in enumerate(offer.buckets, start=1):
                    body = {
                        **group, **part.model_dump(mode="json"),
                        "load_format": "flattened_bucket", "flush_cache": False,
                    } | (self._last(wanted) if number == len(offer.buckets) else {})  # fmt: skip
                    await engine.command("/update_weights_from_distributed", body, what)
        finally:
            with contextlib.suppress(TriforgeError):
                await engine.control("/destroy_weights_update_group", group)

    @contextlib.asynccontextmanager
    async def _session(self, engine: SGLangEngine) -> AsyncIterator[None]:
        """SGLang's session around an update by parts; one that somebody left open is closed first."""
        try:
            await engine.command("/begin_weight_update", {}, "a weight update")
        except WeightsError:
            await engine.command("/end_weight_update", {}, "the end of an older update")
            await engine.command("/begin_weight_update", {}, "a weight update")
        try:
            yield
        except BaseException:
            with contextlib.suppress(TriforgeError):
                await engine.control("/end_weight_update", {})
            raise
        await engine.command("/end_weight_update", {}, "the end of the update")

    # ---- proof ----

    async def ensure_adapter(self, engine: SGLangEngine, wanted: Live) -> None:
        """Pass if an engine that holds the base of `wanted`, and is not paused, has its adapter, too, now or already.

        Raises:
            TriforgeError: see `bring`.
        """
        if wanted.base is None:
            return
        try:
            await self._show_adapter(engine, wanted)
        except UnreachableError:
            raise
        except TriforgeError:
            await self._adapt(engine, wanted)

    async def prove(self, engine: SGLangEngine, wanted: Live) -> None:
        """Pass if the engine shows that it holds `wanted`.

        Raises:
            PolicyError: it says another version, or shows other values.
            UnavailableError: it is gone.
        """
        found = await engine.info(paused=True)
        if found.version != wanted.version:
            raise PolicyError(
                f"engine {engine.url}: was told to serve weight version {wanted.version}, serves {found.version}"
            )
        if self.proof == "info":
            return
        answered = 0
        for shown in wanted.shown:
            answered += await self._shows(engine, wanted, shown)
        if wanted.shown and not answered and engine.url not in self._silent:
            self._silent.add(engine.url)
            _log.warning(
                "engine %s cannot show its tensors (its model has no /get_weights_by_name); its word is taken",
                engine.url,
            )

    async def _shows(self, engine: SGLangEngine, wanted: Live, shown: Shown) -> bool:
        """Whether the engine could answer at all.

        Raises:
            PolicyError: what it shows is not what was published.
        """
        try:
            given = await engine.control(
                "/get_weights_by_name", {"name": shown.name, "truncate_size": shown.count}
            )
        except InputError:
            return False
        try:
            compare(shown, given)
        except WeightsError as error:
            raise PolicyError(
                f"engine {engine.url}: says that it serves weight version {wanted.version}, but {error.detail}; "
                "it is not believed (TRIFORGE_WEIGHTS_PROOF=info takes an engine's word, e.g. of one that quantises)"
            ) from error
        return True


async def _somebody_listens(offer: BroadcastOffer) -> None:
    """Look before the engine does: one that finds nobody goes on trying for half an hour, and serves nothing meanwhile.

    Raises:
        PolicyError: nobody does.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(offer.address, offer.port)
    except (OSError, TimeoutError) as error:
        raise PolicyError(
            f"nobody listens at {offer.address}:{offer.port}, where the learner should ({error}); "
            "TRIFORGE_HANDOVER_HOST must be a name under which others reach it"
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _as_text(entries: Sequence[Entry], local: bool) -> str:
    if local:
        return base64.b64encode(pack(entries)).decode("ascii")
    return payload(entries)
