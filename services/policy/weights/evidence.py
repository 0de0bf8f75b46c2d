"""Evidence that an engine holds a version: rows of its tensors, or the log-probabilities of a probe.

Rows are compared bit for bit. The probe is a prompt with the learner's log-probabilities; it is for adapters, whose tensors
SGLang cannot show, and for models of which SGLang shows no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triforge.chat_template import read_json
from triforge.errors import WeightsError
from triforge.store.tensor_files import Entry, first_rows

PROBE = "probe.json"
_SHOWN = 4  # tensors that an engine is asked for
_COMPARED = 48  # tensors of a folder that are compared with the folder before
_ROWS = 4
_NUMBERS = 512  # of a tensor with one axis
# SGLang keeps these inside larger matrices, and where it looks for them holds for some models only; a tied head may be
# absent from the folder of a version.
_UNSURE = (".k_proj.", ".v_proj.", ".gate_proj.", ".up_proj.", ".experts.", "inv_freq", "lm_head.")

Floats = NDArray[np.float64]
Tensors = Mapping[str, Entry]


# ---- rows ----


@dataclass(frozen=True, slots=True)
class Rows:
    """The first `count` rows of a tensor."""

    name: str
    count: int
    values: Floats


def sample_rows(tensors: Tensors) -> dict[str, Rows]:
    """Read rows of some tensors, by name, the same tensors for every version of a model.

    They stay in memory with the version, so that the next one is compared with it although its folder may have gone.
    """
    names = sorted(n for n in tensors if not any(part in n for part in _UNSURE))
    sampled = (_read_rows(tensors[name]) for name in names[:: max(1, len(names) // _COMPARED)])
    return {rows.name: rows for rows in sampled if rows is not None}


def choose_rows(new: Mapping[str, Rows], old: Mapping[str, Rows]) -> tuple[Rows, ...]:
    """Choose rows to ask an engine for: those that differ from the version before, if possible even in bfloat16."""
    ranked = sorted(new.values(), key=lambda rows: _similarity(rows, old.get(rows.name)))
    return tuple(ranked[:_SHOWN])


def _read_rows(entry: Entry) -> Rows | None:
    count = _ROWS if len(entry.shape) > 1 else _NUMBERS
    values = first_rows(entry, count)
    return None if values is None or values.size == 0 else Rows(entry.name, count, values)


def _similarity(new: Rows, old: Rows | None) -> int:
    """Return 0 if rows differ even in bfloat16, 1 if they differ, 2 if they are equal or cannot be compared."""
    if old is None or old.values.shape != new.values.shape:
        return 2
    if not np.array_equal(as_bfloat16(new.values), as_bfloat16(old.values)):
        return 0
    return 2 if np.array_equal(new.values, old.values) else 1


def as_bfloat16(values: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even, as torch does."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def compare_rows(expected: Rows, answer: Any) -> None:
    """Raise WeightsError unless an engine's answer is the expected rows, or the beginnings of rows that are split over devices.

    Engines compute in float32, bfloat16 or float16.
    """
    try:
        shown = np.asarray(answer, dtype=np.float64)
    except (ValueError, TypeError):
        raise WeightsError(f"tensor {expected.name}: answered {answer!r:.80}") from None
    wanted = expected.values
    if shown.ndim != wanted.ndim or shown.size == 0 or len(shown) != len(wanted):
        raise WeightsError(
            f"tensor {expected.name}: shows rows of shape {list(shown.shape)}, expected {list(wanted.shape)}"
        )
    wanted = wanted[tuple(slice(size) for size in shown.shape)]
    if shown.shape != wanted.shape or not any(np.array_equal(shown, v) for v in _forms(wanted)):
        raise WeightsError(
            f"tensor {expected.name}: holds {_short(shown)}, expected {_short(wanted)} as published"
        )


def _forms(values: Floats) -> Sequence[Floats]:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16).astype(np.float64)
    return (values.astype(np.float32).astype(np.float64), as_bfloat16(values), half)


def _short(values: Floats) -> str:
    return "[" + ", ".join(f"{v:.6g}" for v in values.ravel()[:3]) + ", ...]"


# ---- probe ----


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, and the log-probability of each of its ids but the first, before the weights were rounded to `dtype`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "float32"


def read_probe(folder: Path) -> Probe:
    """Read the probe of a version's folder."""
    path = folder / PROBE
    if not path.is_file():
        raise WeightsError(f"{path}: cannot be read: there is no such file")
    content = read_json(path)
    ids, logprobs = content.get("ids"), content.get("logprobs")
    if not (isinstance(ids, list) and isinstance(logprobs, list)) or not (
        len(ids) == len(logprobs) + 1 > 1
        and all(isinstance(i, int) for i in ids)
        and all(isinstance(v, float) and math.isfinite(v) for v in logprobs)
    ):
        raise WeightsError(
            f"{path}: expected ids and one log-probability for each but the first, found {ids!r:.40}, {logprobs!r:.40}"
        )
    return Probe(tuple(ids), tuple(logprobs), str(content.get("dtype", "float32")))
