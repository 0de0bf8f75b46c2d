"""Memory of tensors, released for a while. No import of torch: the caller has the tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Offloaded:
    """Tensors whose memory is released, with copies of their contents on the CPU; the same path serves tensors of a CPU.

    The tensors and all views of them stay valid; they must not be read before `restore`.
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
        """Allocate the memory again, with its contents. After a failure for lack of memory it can be called again."""
        while self._copies:
            storage, copy = self._copies[-1]
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
            self._copies.pop()
