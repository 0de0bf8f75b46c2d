"""Shared prefixes: groups of eight answers to one long prompt, beside the same rows whose prompts differ from the first token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.gpu.models import SHAPES, emptied, rows
from bench.gpu.throughput_part import figures, learner

_GROUP = 8


def _groups(name: str, prefix: int, answer: int, groups: int, budget: int) -> dict[str, Any]:
    """Seconds of an update with the prefix computed once a group, and once a row."""
    vocabulary, found = SHAPES[name].vocabulary, {}
    lengths = [(prefix, answer)] * (_GROUP * groups)
    for shared in (True, False):
        heads = [
            [3 + (i // _GROUP if shared else i), *_words(prefix, vocabulary)]
            for i in range(len(lengths))
        ]
        with emptied():
            given = rows(lengths, vocabulary, prefixes=heads)
            figure = figures(learner(name), given, budget, activation_checkpointing=budget > 4096)
        which = "shared" if shared else "apart"
        once = groups if shared else len(lengths)  # times that a prefix is computed
        assert figure["computed_tokens"] <= 3 * (once * prefix + len(lengths) * answer), figure
        found |= {
            f"{which}_{n}": figure[n]
            for n in ("seconds", "tokens_per_s", "computed_tokens", "peak_gib")
        }
    return {"ratio": found["apart_seconds"] / found["shared_seconds"]} | found


def _words(count: int, vocabulary: int) -> list[int]:
    return [20 + i * 7 % (min(vocabulary, 40_000) - 20) for i in range(count - 1)]


def cases(*, rehearse: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    if rehearse:
        return {"tiny-48": partial(_groups, "tiny", 48, 16, 2, 512)}
    return {
        "0.6B-4k": partial(_groups, "0.6B", 4096, 1024, 2, 49152),
        "0.6B-8k": partial(_groups, "0.6B", 8192, 1024, 2, 81920),
        "1.7B-8k": partial(_groups, "1.7B", 8192, 1024, 1, 81920),
    }
