"""Shared prefixes: groups of eight answers to one long prompt, compared with rows whose prompts differ from the first token."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.device import emptied, peak_gib
from bench.gpu.models import SHAPES, rows
from bench.gpu.throughput_part import figures, learner

_GROUP = 8


def _groups(
    name: str, prefix: int, answer: int, groups: int, budget: int, _: Path
) -> dict[str, Any]:
    """Seconds of an update with the prefix computed once a group, and once a row."""
    vocabulary, lengths = SHAPES[name].vocabulary, [(prefix, answer)] * (_GROUP * groups)
    words = [20 + i * 7 % (min(vocabulary, 40_000) - 20) for i in range(prefix - 1)]
    found: dict[str, Any] = {}
    for which, once in (("shared", groups), ("apart", len(lengths))):  # times a prefix is computed
        heads = [[3 + row * once // len(lengths), *words] for row in range(len(lengths))]
        with emptied():
            given = rows(lengths, vocabulary, prefixes=heads)
            figure = figures(learner(name), given, budget, activation_checkpointing=budget > 4096)
            figure["peak_gib"] = peak_gib()
        assert figure["computed_tokens"] <= 3 * (once * prefix + len(lengths) * answer), figure
        kept = ("seconds", "tokens_per_s", "computed_tokens", "peak_gib")
        found |= {f"{which}_{n}": figure[n] for n in kept}
    return {"ratio": found["apart_seconds"] / found["shared_seconds"]} | found


CASES = {
    "0.6B-4k": partial(_groups, "0.6B", 4096, 1024, 2, 49152),
    "0.6B-8k": partial(_groups, "0.6B", 8192, 1024, 2, 81920),
    "1.7B-8k": partial(_groups, "1.7B", 8192, 1024, 1, 81920),
}
REHEARSAL = {"tiny-48": partial(_groups, "tiny", 48, 16, 2, 512)}
