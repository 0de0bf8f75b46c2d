"""Memory of tensors given back for a while. Nothing here imports torch: whoever has tensors has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Offloaded:
    """Tensors whose memory is free, and what they held, on the CPU; also on a CPU, so that one path serves all devices.

    The tensors themselves, and all views of them, stay what they are. Nobody may read them before `restore`.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in tensors)}
        self._copies: list[tuple[Any, Any]] = []
        for storage in storages.values():
            if storage.resizable() and storage.nbytes():
                copy = storage.clone() if storage.device.type == "cpu" else storage.cpu()
                self._copies.append((storage, copy))
                storage.resize_(0)

    def restore(self) -> None:
        """Take the memory again, with what was in it. One that finds too little of it can be called again."""
        while self._copies:
            storage, copy = self._copies[-1]
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
            self._copies.pop()
