"""The network's side of a protocol, for tests of what happens byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any


class Broker(asyncio.Transport):
    """What the protocol writes, and whether it hangs up."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.hung_up = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.hung_up = True

    def is_closing(self) -> bool:
        return self.hung_up

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
