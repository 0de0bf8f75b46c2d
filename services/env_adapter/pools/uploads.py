"""A body on its way to a pool, kept on disk; `triforge.environments.rows` reads it."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from typing import IO

_IN_MEMORY = 2**20  # bytes; what is larger goes to a temporary file


class Upload:
    """A body that has arrived. Close it."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.close = self._file.close

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes so far."""
        return self._hash.hexdigest()

    def write(self, part: bytes) -> None:
        """Append a part."""
        self._hash.update(part)
        self._file.write(part)

    def start(self) -> IO[bytes]:
        """The file, from its first byte."""
        self._file.seek(0)
        return self._file


async def receive(parts: AsyncIterator[bytes]) -> Upload:
    """Take a body in; whatever ends it early leaves nothing behind."""
    upload = Upload()
    waiting = bytearray()
    try:
        async for part in parts:
            waiting += part
            if len(waiting) >= _IN_MEMORY:
                await asyncio.to_thread(upload.write, bytes(waiting))
                waiting.clear()
        upload.write(bytes(waiting))
    except BaseException:
        upload.close()
        raise
    return upload
