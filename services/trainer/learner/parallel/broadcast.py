"""Weights by broadcast: the API of a learner's rank, and rank 0 of a process group whose other ranks are processes of engines.

SGLang joins such a group at `/init_weights_update_group`: a TCP store at the address it is given, and in it the names
`<group>/<group>/<device>/`, under which its backend meets the others. The same names are used here, with torch's own
backends and nothing of SGLang; no default process group is made or touched.

The engines of a group wait for each other, and an SGLang that waits for a rank that never comes does so for half an hour and
serves nothing meanwhile. So this process goes, and its store with it, as soon as one of them has not come or does not go on
for `timeout_s`, or the policy service says that one is lost; the others hear that at once, and read the folder.

The tensors come from the published folder, not from the model in training, so that what is sent is what is recorded, and
the next training step can begin meanwhile. Of a learner of several ranks each one sends its share of the buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
import uvicorn
from fastapi import Depends, FastAPI, Request
from pydantic import Field
from safetensors import SafetensorError, safe_open
from starlette.exceptions import HTTPException
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from triforge.config import Settings
from triforge.errors import InputError, NotFoundError, WeightsError
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import load_manifest
from triforge.store.tensor_files import weight_files
from triforge.telemetry import server_options
from triforge.types import BroadcastOffer, Message, TensorBucket
from triforge.web.app import install
from triforge.web.origins import OriginPolicy

log = logging.getLogger(__name__)

Backend = Literal["gloo", "nccl"]
BUCKET_BYTES = 256 << 20


_LONGEST_ADDRESS = 512
_PATIENCE_S = 30.0
# A store that has gone is retried for minutes; one that goes under a connection is heard at once. So it outlives by this
# the moment when the engines checked the connection.
_LATE_S = 2.0


class BroadcastRequest(Message):
    """Broadcast part `part` of `parts` of a version to engines of so many processes. Produced by: policy service."""

    uri: str
    digest: str = ""
    receivers: Annotated[int, Field(ge=1, le=4096)]
    part: Annotated[int, Field(ge=0)] = 0
    parts: Annotated[int, Field(ge=1)] = 1


class Broadcaster:
    """Serves broadcasts side by side, each to some engines.

    Args:
        root: folder below which weights are published; others are not sent.
        host: name under which the engines reach this process.
        device: where tensors lie while they are sent with `nccl`.
        backend: `gloo` or `nccl`.
        timeout_s: longest time until all have joined, and for each bucket.
        bucket_bytes: tensors are sent in runs of at most so many bytes, larger ones alone.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str,
        device: torch.device,
        backend: Backend,
        timeout_s: float,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._root, self.host, self._device = root, host, device
        self._backend: Backend = backend
        self._timeout = timedelta(seconds=timeout_s)
        self._bucket_bytes = bucket_bytes
        self._lock = threading.Lock()
        self._sendings: dict[str, _Sending] = {}

    def offer(self, request: BroadcastRequest) -> BroadcastOffer:
        """Begin a broadcast; one without buckets is not begun.

        Raises InputError or WeightsError: the folder is not among the published ones, gone, damaged or another one.
        """
        folder = Path(request.uri)
        if not folder.resolve().is_relative_to(self._root.resolve()):
            raise InputError(f"uri: given {request.uri}, expected a folder below {self._root}")
        if request.digest:
            load_manifest(folder, announced=request.digest)
        files = weight_files(folder)
        buckets = plan_buckets(files, self._bucket_bytes)[request.part :: request.parts]
        sending = _Sending(
            files, buckets, group=f"{folder.name}-{uuid.uuid4().hex[:8]}",
            size=1 + request.receivers, backend=self._backend, device=self._device, timeout=self._timeout,
        )  # fmt: skip
        with self._lock:
            self._sendings = {g: s for g, s in self._sendings.items() if s.is_alive()}
            self._sendings[sending.group] = sending
            if buckets:
                sending.start()
        return BroadcastOffer(
            address=self.host,
            port=sending.port,
            group=sending.group,
            backend=self._backend,
            world_size=1 + request.receivers,
            buckets=tuple(buckets),
        )

    def end(self, group: str) -> str:
        """Give a broadcast up if it is still under way; returns what became of it. Raises NotFoundError."""
        with self._lock:
            sending = self._sendings.pop(group, None)
        if sending is None:
            raise NotFoundError(f"broadcast {group!r}: not one that is under way")
        if sending.state == "waiting":
            later = threading.Timer(_LATE_S, sending.give_up)
            later.daemon = True
            later.start()
        else:
            sending.give_up()
        return sending.state

    def close(self) -> None:
        """Give up what is under way."""
        with self._lock:
            for sending in self._sendings.values():
                sending.give_up()


class _Sending(threading.Thread):
    """One broadcast, from the rendezvous to the last bucket; `state` is `waiting`, `sending`, `sent` or `failed: ...`."""

    def __init__(
        self, files: Sequence[Path], buckets: Sequence[TensorBucket], *, group: str, size: int, backend: Backend,
        device: torch.device, timeout: timedelta,
    ) -> None:  # fmt: skip
        super().__init__(name=f"broadcast-{group}", daemon=True)
        self.group, self.state = group, "waiting"
        self._files, self._buckets, self._size = files, buckets, size
        self._backend, self._device, self._timeout = backend, device, timeout
        everywhere = "0.0.0.0"  # noqa: S104 - engines on other machines join
        # When the server goes, who still waits hears it at once.
        self._server: TCPStore | None = TCPStore(
            everywhere, 0, size, is_master=True, timeout=timeout, wait_for_workers=False
        )
        self.port = int(self._server.port)
        self._group: Any = None

    def give_up(self) -> None:
        """End it; harmless for one that has ended."""
        self._server = None
        group = self._group
        if self.is_alive() and group is not None and self.state == "sending":
            group.abort()

    def run(self) -> None:
        """Meet the engines and send."""
        try:
            self._group = self._meet()
            self.state = "sending"
            with _opened(self._files) as holders:
                for bucket in self._buckets:
                    flat = _flat(holders, bucket)
                    flat = flat.to(self._device) if self._backend == "nccl" else flat
                    self._complete(self._group.broadcast([flat], dist.BroadcastOptions()))
            self.state = "sent"
        except (RuntimeError, SafetensorError, OSError) as error:  # torch's distributed errors
            first_line = str(error).partition("\n")[0] or type(error).__name__
            self.state = f"failed: {first_line}"
            log.warning("broadcast %s %s", self.group, self.state)
        finally:
            self._group = self._server = None

    def _complete(self, work: Any) -> None:
        """Return when a bucket is sent. NCCL's own `wait` blocks its stream alone, and at its limit the whole process ends."""
        ends = time.monotonic() + self._timeout.total_seconds()
        while not work.is_completed():
            if time.monotonic() > ends:
                self._group.abort()
                raise RuntimeError(
                    f"a bucket was not taken within {self._timeout.total_seconds():g} s"
                )
            time.sleep(0.001)
        work.wait()

    def _meet(self) -> Any:
        device = "cpu" if self._backend == "gloo" else "cuda"
        store: Any = TCPStore(
            "127.0.0.1", self.port, self._size, is_master=False, timeout=self._timeout
        )
        for name in (self.group, f"{self.group}/", f"{device}/"):
            store = PrefixStore(name, store)
        if self._backend == "gloo":
            return dist.ProcessGroupGloo(store, 0, self._size, self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = 2 * self._timeout  # `_complete` comes before
        return dist.ProcessGroupNCCL(store, 0, self._size, options)


@contextlib.contextmanager
def _opened(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Return the open file that holds each tensor, by the tensor's name."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(safe_open(str(p), framework="pt")) for p in paths]
        yield {name: file for file in files for name in file.keys()}  # noqa: SIM118 - not a dict


def _flat(holders: Mapping[str, Any], bucket: TensorBucket) -> Tensor:
    """Return the bytes of a bucket's tensors, one after another; uint8 [N]."""
    tensors = [holders[name].get_tensor(name).contiguous() for name in bucket.names]
    return torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])


_Named = tuple[str, str, tuple[int, ...], int]  # name, type, shape, bytes of an element


def plan_buckets(paths: Sequence[Path], limit: int) -> list[TensorBucket]:
    """Group the tensors of a folder's files into buckets. Wider element types come first, so that each tensor is aligned.

    Raises:
        WeightsError: there are none, or one cannot be read.
    """
    named: list[_Named] = []
    if not paths:
        raise WeightsError("weights: cannot be read: the folder has no safetensors file")
    try:
        with _opened(paths) as holders:
            for name, file in holders.items():
                tensor = file.get_tensor(name)
                kind = str(tensor.dtype).removeprefix("torch.")
                named.append((name, kind, tuple(tensor.shape), tensor.itemsize))
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{paths[0].parent}: cannot be read as safetensors: {error}") from error
    named.sort(key=lambda t: (-t[3], t[0]))
    parts = (zip(*part, strict=True) for part in _parts(named, limit))
    return [
        TensorBucket(names=names, dtypes=dtypes, shapes=shapes)
        for names, dtypes, shapes, _ in parts
    ]


def _parts(tensors: Sequence[_Named], limit: int) -> Iterator[list[_Named]]:
    held: list[_Named] = []
    size = 0
    for tensor in tensors:
        more = math.prod(tensor[2]) * tensor[3]
        if held and size + more > limit:
            yield held
            held, size = [], 0
        held.append(tensor)
        size += more
    if held:
        yield held


# ---- the learner's API, which exists only while weights travel that way ----


def create_api(broadcaster: Broadcaster, *, admin_api_key: str = "") -> FastAPI:
    """Return the application; callers send `admin_api_key` as a bearer token if there is one."""
    app = FastAPI(title="triforge learner")
    hosts = None if admin_api_key else frozenset({broadcaster.host})
    install(app, origins=OriginPolicy(hosts=hosts))

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if admin_api_key and not hmac.compare_digest(given, f"Bearer {admin_api_key}".encode()):
            raise HTTPException(
                401,
                "a bearer token is needed: the policy service's TRIFORGE_ADMIN_API_KEY must be the learner's",
                {"WWW-Authenticate": "Bearer"},
            )

    key = [Depends(authorised)]

    @app.post("/v1/broadcasts", dependencies=key)
    async def begin(body: BroadcastRequest) -> BroadcastOffer:
        """Broadcast a part of a published folder to so many receivers; answers where they meet."""
        return await asyncio.to_thread(broadcaster.offer, body)

    @app.delete("/v1/broadcasts/{group}", dependencies=key)
    async def end(group: str) -> dict[str, str]:
        """End the broadcast and return its result."""
        return {"state": await asyncio.to_thread(broadcaster.end, group)}

    return app


@contextlib.contextmanager
def open_api(
    broadcaster: Broadcaster, *, host: str, listen: str, admin_api_key: str = ""
) -> Iterator[str]:
    """Serve the API at `listen` and a port that the kernel chooses; services reach this machine as `host`."""
    with socket.create_server((listen, 0)) as listener:
        app = create_api(broadcaster, admin_api_key=admin_api_key)
        config = uvicorn.Config(
            app, **server_options(), timeout_graceful_shutdown=1, lifespan="off"
        )
        server = uvicorn.Server(config)
        # In a thread of its own: there the server leaves the learner's signals alone.
        serving = threading.Thread(target=server.run, args=([listener],), daemon=True)
        serving.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            broadcaster.close()
            serving.join()


@contextlib.contextmanager
def broadcasts(
    store: ArtifactStore, settings: Settings, device: torch.device
) -> Iterator[tuple[str, ...]]:
    """Serve this rank's broadcast API and yield the URLs of all ranks. GPU tensors go over NCCL, CPU tensors over gloo."""
    backend = settings.handover_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    broadcaster = Broadcaster(
        store.local_path("weights"),
        host=settings.handover_host,
        device=device,
        backend=backend,
        timeout_s=min(_PATIENCE_S, settings.handover_timeout_s),
    )
    key = (settings.admin_api_key or settings.api_key).get_secret_value()
    with open_api(
        broadcaster, host=settings.handover_host, listen=settings.host, admin_api_key=key
    ) as address:
        yield _of_all_ranks(address)


def _of_all_ranks(address: str) -> tuple[str, ...]:
    if not dist.is_initialized():
        return (address,)
    mine = torch.tensor(list(address.encode().ljust(_LONGEST_ADDRESS)), dtype=torch.uint8)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return tuple(bytes(one.tolist()).decode().strip() for one in found)
