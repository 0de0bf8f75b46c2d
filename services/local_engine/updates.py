"""Updates of weights while the engine serves: from a folder, or by broadcast.

New weights are read and checked outside of the decoding thread, then swapped in between two decode steps. Weights that fail a
check change nothing. No pickle is read: a client that may send weights must not be able to run code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

# torch exports these and documents them, but its type information does not have them.
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from services.local_engine.engine import Engine, Swapped
from services.local_engine.model import stage_tensors, stage_weights
from services.local_engine.request import Body, explain
from triforge.errors import InputError, WeightsError

_JOIN_TIMEOUT = timedelta(seconds=60)
# A broadcast begins when the trainer sends; it may still be copying its weights from its device.
_RECEIVE_TIMEOUT = timedelta(seconds=120)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class WeightUpdate(Body):
    """The fields that all updates share."""

    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: Literal[False] = False


class BroadcastUpdate(WeightUpdate):
    """Body of /update_weights_from_distributed: names, types and shapes of tensors that are about to be broadcast."""

    names: Annotated[list[str], Field(min_length=1)]
    dtypes: list[str]
    shapes: list[list[Annotated[int, Field(gt=0)]]]
    group_name: str = "weight_update_group"
    load_format: str = ""

    @model_validator(mode="after")
    def _fitting(self) -> BroadcastUpdate:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise ValueError(
                f"{len(self.names)} names, {len(self.dtypes)} dtypes and {len(self.shapes)} shapes; "
                "expected as many of each"
            )
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            if dtype.removeprefix("torch.") not in _DTYPES:
                raise ValueError(
                    f"tensor {name} is of type {dtype!r}; expected one of {list(_DTYPES)}"
                )
        return self

    def read(self, groups: Mapping[str, UpdateGroup]) -> dict[str, Tensor]:
        """Receive the tensors, one by one or all in one piece of bytes; blocking."""
        group = groups.get(self.group_name)
        if group is None:
            raise _unknown_group(self.group_name, groups)
        dtypes = (_DTYPES[dtype.removeprefix("torch.")] for dtype in self.dtypes)
        kinds = list(zip(self.names, dtypes, self.shapes, strict=True))
        try:
            if self.load_format == "flattened_bucket":
                return _receive_bucket(group, kinds)
            tensors = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape in kinds}
            for tensor in tensors.values():
                group.receive(tensor)
        except RuntimeError as error:
            raise WeightsError(
                f"nothing was received over group {self.group_name!r}: {error}"
            ) from error
        return tensors


def _receive_bucket(
    group: UpdateGroup, kinds: list[tuple[str, torch.dtype, list[int]]]
) -> dict[str, Tensor]:
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in kinds]
    bucket = torch.empty(sum(sizes), dtype=torch.uint8)
    group.receive(bucket)
    tensors, start = {}, 0
    for (name, dtype, shape), size in zip(kinds, sizes, strict=True):
        if start % dtype.itemsize:
            raise InputError(
                f"tensor {name} would begin at byte {start} of the bucket, which is no multiple of "
                f"{dtype.itemsize}; put tensors of wider types first"
            )
        tensors[name] = bucket[start : start + size].view(dtype).reshape(shape)
        start += size
    return tensors


class JoinGroup(Body):
    """Body of /init_weights_update_group: the address of rank 0 and its store, and this engine's rank, from 1."""

    backend: Literal["gloo"]  # the only one on a CPU
    world_size: int
    rank_offset: Annotated[int, Field(ge=1)]
    master_address: str
    master_port: int
    group_name: str = "weight_update_group"

    @model_validator(mode="after")
    def _inside(self) -> JoinGroup:
        if self.rank_offset >= self.world_size:
            raise ValueError(f"rank_offset is {self.rank_offset} in a group of {self.world_size}")
        return self


class UpdateGroup:
    """A gloo group over which rank 0 broadcasts weights; not in torch's global registry.

    Names are those of torch's own helper for further groups: any trainer that uses it can be rank 0.
    """

    def __init__(self, join: JoinGroup) -> None:
        name, size = join.group_name, join.world_size
        self._store = TCPStore(
            join.master_address, join.master_port, size, is_master=False, timeout=_JOIN_TIMEOUT, multi_tenant=True
        )  # fmt: skip
        inner = PrefixStore("cpu/", PrefixStore(f"{name}/", PrefixStore(name, self._store)))
        self._group: Any = ProcessGroupGloo(inner, join.rank_offset, size, timeout=_JOIN_TIMEOUT)

    def receive(self, tensor: Tensor) -> None:
        """Fill `tensor` with the next broadcast of rank 0."""
        self._group.broadcast(tensor, 0, _RECEIVE_TIMEOUT).wait(_RECEIVE_TIMEOUT)


@dataclass
class _Session:
    """Tensors between begin and end that wait to be swapped in together, and why a call was refused."""

    staged: dict[str, Tensor] = field(default_factory=dict)
    refused: str = ""


class Updates:
    """Updates of one engine's weights, one after another. Each refusal is a WeightsError or an InputError.

    A session collects the tensors of several calls. They are swapped in together by the call that names their version, or at
    the end of the session if none does. After a refused call nothing of the session is swapped in.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._session: _Session | None = None
        self._groups: dict[str, UpdateGroup] = {}

    async def from_disk(self, folder: Path, version: str | None) -> Swapped:
        """Serve the weights of `folder`. Tensors of an open session are older, so they are dropped."""
        engine = self._engine
        async with self._turn:
            tensors = await asyncio.to_thread(stage_weights, folder, engine.model, engine.config)
            if self._session is not None:
                self._session.staged.clear()
            return await engine.swap(tensors, version, folder=folder)

    async def begin(self) -> None:
        """Open a session."""
        async with self._turn:
            if self._session is not None:
                raise WeightsError(
                    "a weight-update session is already open; call end_weight_update() first"
                )
            self._session = _Session()

    async def end(self) -> None:
        """Close the session and swap in the tensors that wait, unless a call was refused."""
        async with self._turn:
            session, self._session = self._session, None
            if session is None:
                raise WeightsError(
                    "no weight-update session is open; call begin_weight_update() first"
                )
            if session.staged:
                await self._engine.swap(session.staged, None)

    async def take_broadcast(self, body: Any) -> tuple[WeightUpdate, Swapped | None]:
        """Receive the tensors of a request; swap in all tensors of the session if it names a version."""
        async with self._turn:
            session = self._session
            if session is None:
                raise WeightsError(
                    "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
                )
            try:
                return await self._take(session, BroadcastUpdate.model_validate(body))
            except Exception as error:
                reason = explain(error) if isinstance(error, ValidationError) else str(error)
                session.refused = session.refused or reason
                session.staged.clear()
                if isinstance(error, (ValidationError, InputError)):
                    raise WeightsError(reason) from error
                raise

    async def _take(
        self, session: _Session, body: BroadcastUpdate
    ) -> tuple[WeightUpdate, Swapped | None]:
        tensors = await asyncio.to_thread(body.read, self._groups)
        if session.refused:
            raise WeightsError(
                f"an earlier call of this session was refused ({session.refused}); end the session and begin again"
            )
        session.staged |= await asyncio.to_thread(
            stage_tensors, tensors, self._engine.model, "this update"
        )
        if body.weight_version is None:
            return body, None
        staged, session.staged = session.staged, {}
        return body, await self._engine.swap(staged, body.weight_version)

    async def join(self, join: JoinGroup) -> None:
        """Join a group; wait for its other members."""
        name = join.group_name
        async with self._turn:
            if name in self._groups:
                raise WeightsError(f"group {name!r} was joined before; destroy it first")
            try:
                self._groups[name] = await asyncio.to_thread(UpdateGroup, join)
            except (RuntimeError, ValueError, OSError) as error:
                raise WeightsError(f"could not join {join!r}: {error}") from error

    async def leave(self, name: str) -> None:
        """Leave the group `name`."""
        async with self._turn:
            if self._groups.pop(name, None) is None:
                raise _unknown_group(name, self._groups)


def _unknown_group(name: str, groups: Mapping[str, UpdateGroup]) -> WeightsError:
    return WeightsError(f"group {name!r} does not exist; joined are {sorted(groups) or 'none'}")
