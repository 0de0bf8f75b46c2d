"""A pool from a file. The door checks the rows and names each bad one; here the file is only read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triforge.clients.env_adapter import EnvAdapterClient
from triforge.errors import InputError
from triforge.messages import PoolState


def read(file: Path) -> dict[str, Any] | bytes:
    """The JSON object of the file, or the lines of a `.jsonl` file as they are.

    Raises:
        InputError: the file cannot be read, or holds no JSON object.
    """
    try:
        content = file.read_bytes()
        if file.suffix == ".jsonl":
            return content
        body = json.loads(content)
    except OSError as error:
        raise InputError(f"pool file {file}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"pool file {file}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError(f"pool file {file}: given a {type(body).__name__}, expected a JSON object")
    return body


async def send(
    client: EnvAdapterClient, name: str, body: dict[str, Any] | bytes, *, environment: str
) -> PoolState:
    """Make the pool; `environment` is the family of a JSONL file's tasks.

    Raises:
        InputError: rows are malformed; `problems` names them.
        ConflictError: the name is taken.
    """
    if isinstance(body, bytes):
        return await client.upload_pool(name, environment, body)
    return await client.create_pool({"environment": environment, **body, "name": name})
