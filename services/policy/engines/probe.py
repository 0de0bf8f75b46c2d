"""What shows that an engine computes with the weights of a version: a prompt, and the learner's log-probabilities of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from services.policy.engines.protocol import Engine
from triforge.chat_template import read_json
from triforge.errors import PolicyError, WeightsError

PROBE = "probe.json"
# Largest mean difference of a log-probability, by the type that the engine computes in, or the version is in; "auto" may be any.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "half": 2e-2}
_ROUGH = 1e-1


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, and the log-probability of each of its ids but the first, before the weights were rounded to `dtype`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "float32"


def read_probe(folder: Path) -> Probe:
    """The probe of a version's folder."""
    path = folder / PROBE
    if not path.is_file():
        raise WeightsError(f"{path}: cannot be read: there is no such file")
    found = read_json(path)
    ids, logprobs = found.get("ids"), found.get("logprobs")
    if not (isinstance(ids, list) and isinstance(logprobs, list)) or not (
        len(ids) == len(logprobs) + 1 > 1
        and all(isinstance(i, int) for i in ids)
        and all(isinstance(v, float) and math.isfinite(v) for v in logprobs)
    ):
        raise WeightsError(
            f"{path}: expected ids and one log-probability for each but the first, found {ids!r:.40}, {logprobs!r:.40}"
        )
    return Probe(tuple(ids), tuple(logprobs), str(found.get("dtype", "float32")))


async def verify_probe(
    engine: Engine, probe: Probe, what: str, adapter: str = "", *, believed: bool = False
) -> None:
    """Pass if an engine, which says that it has `what`, gives the learner's log-probabilities (`believed`: any)."""
    found, _ = await engine.prompt_logprobs(probe.ids, adapter)
    if believed:
        return
    kind = await engine.dtype()
    allowed = max(_TOLERANCE.get(each, _ROUGH) for each in (kind, probe.dtype))
    away = math.fsum(abs(a - b) for a, b in zip(found, probe.logprobs, strict=True)) / len(found)
    if not away <= allowed:
        raise PolicyError(
            f"engine {engine.url}: says that it has {what}, but the log-probabilities that it gives with it are "
            f"off by {away:.3g} in the mean, expected at most {allowed:g} (it computes in {kind}); it is not believed "
            "(TRIFORGE_WEIGHTS_VERIFY=info takes an engine's word, e.g. of one that quantises)"
        )
