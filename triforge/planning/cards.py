"""The GPUs of a machine: those of CUDA_VISIBLE_DEVICES that `nvidia-smi` lists, or those that a plan is asked for."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Final, NamedTuple

from triforge.errors import ConfigError
from triforge.planning.memory import GIB

_QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total",
    "--format=csv,noheader,nounits",
)
_PATIENCE_S: Final = 30


class Speed(NamedTuple):
    """Rates of a card's data sheet: bfloat16 FLOPs a second without sparsity, and bytes of its memory a second."""

    flops: float
    bandwidth: float


SPEEDS: Final = {  # the first whose name is part of the card's
    "B200": Speed(2250e12, 8.0e12), "H200": Speed(989e12, 4.8e12), "H100 NVL": Speed(835e12, 3.9e12),
    "H100 PCIe": Speed(756e12, 2.0e12), "H100": Speed(989e12, 3.35e12), "H800": Speed(989e12, 3.35e12),
    "A100": Speed(312e12, 2.0e12), "L40S": Speed(362e12, 0.86e12), "L40": Speed(181e12, 0.86e12),
}  # fmt: skip
# A card that is described by its memory alone, if that is not less.
_UNNAMED: Final = "H100"
_UNNAMED_MEMORY: Final = 80 * GIB


def sheet_of(name: str) -> str:
    """Return the entry of the table for a card's name; empty if there is none."""
    return next((part for part in SPEEDS if part in name), "")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU by its number on the machine; `memory` in bytes."""

    index: int
    memory: float
    name: str = ""

    @property
    def sheet(self) -> str:
        """The data sheet by its name; without one that of `_UNNAMED` if it has as much memory; empty if none is known."""
        return sheet_of(self.name or _UNNAMED * (self.memory >= _UNNAMED_MEMORY))

    @property
    def speed(self) -> Speed | None:
        """Its rates, if its data sheet is known."""
        return SPEEDS.get(self.sheet)


def find_cards(gpus: str) -> list[Card]:
    """Return the cards that are described (`8x80GB`), or so many of the machine (`8`), all if nothing is given.

    Raises:
        ConfigError: the machine has fewer, or `nvidia-smi` does not answer.
    """
    described = re.fullmatch(r"(\d+)x(\d+)GB", gpus)
    if described:
        count, size = map(int, described.groups())
        return [Card(n, size * GIB) for n in range(count)]
    if gpus == "0":
        return []
    here = _on_this_machine(demand=bool(gpus))
    count = int(gpus) if gpus else len(here)
    if count > len(here):
        raise ConfigError(
            f"machine.gpus: given {count}, but there are {len(here)} here (nvidia-smi, CUDA_VISIBLE_DEVICES); for a plan of another machine give their "
            f"memory, too: --gpus {count}x80GB"
        )
    return here[:count]


def _on_this_machine(*, demand: bool) -> list[Card]:
    try:
        done = subprocess.run(  # noqa: S603 (fixed words)
            _QUERY, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
        rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return [
            Card(int(index), int(mib) * 2.0**20, name)
            for index, uuid, name, mib in rows
            if visible is None or {index, uuid} & set(visible.split(","))
        ]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if not demand and isinstance(error, FileNotFoundError):
            return []
        raise ConfigError(
            f"machine.gpus: nvidia-smi does not list cards here ({error}), expected NVIDIA's driver; for a plan of another "
            "machine describe its cards: --gpus 8x80GB"
        ) from None
