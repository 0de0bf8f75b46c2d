"""A pool from a file. The API checks the rows and names each bad one; here the file is only read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from triforge.clients.env_adapter import EnvAdapterClient
from triforge.environments.rows import object_of
from triforge.errors import InputError
from triforge.types import Approval, PoolState

_CHUNK = 2**20


def read(file: Path) -> dict[str, Any] | Path:
    """The JSON object of the file; a `.jsonl` file stays where it is and is sent as it is read.

    Raises:
        InputError: the file cannot be read, or holds no JSON object.
    """
    try:
        with file.open("rb") as opened:
            if file.suffix == ".jsonl":
                return file
            return object_of(opened.read(), f"pool file {file}")
    except OSError as error:
        raise InputError(f"pool file {file}: {error.strerror}") from None


def request(
    name: str, body: dict[str, Any] | Path, *, environment: str, approval: Approval = "automatic"
) -> dict[str, Any]:
    """What is asked for, the rows of a JSONL file left out; a body that names no family gets `environment`."""
    asked = {"approval": approval} if approval != "automatic" else {}
    given = {} if isinstance(body, Path) else body
    return {"environment": environment, **given, "name": name, **asked}


async def send(
    client: EnvAdapterClient,
    name: str,
    body: dict[str, Any] | Path,
    *,
    environment: str,
    approval: Approval = "automatic",
) -> PoolState:
    """Make the pool; `environment` is the family of a JSONL file's tasks."""
    if isinstance(body, Path):
        return await client.upload_pool(name, environment, _parts(body), approval=approval)
    asked = request(name, body, environment=environment, approval=approval)
    return await client.create_pool(asked)


async def _parts(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while part := await asyncio.to_thread(opened.read, _CHUNK):
            yield part
