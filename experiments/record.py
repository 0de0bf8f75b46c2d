"""Inputs of a run, and the lines of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT = ("success", "in_band", "all_same", "judge/balanced", "judge/outcome", "judge/within_label", "judge/within_outcome",
        "judge/unanimous", "judge/alarm", "votes/trained_share", "theory/mu_within", "theory/mu",
        "theory/p_plus", "theory/p_minus", "theory/f_ratio", "theory/one_sided", "votes/trust", "votes/weight",
        "policy/entropy", "policy/kl_k3", "policy/moved_k3", "policy/updates", "rows/policy", "rows/reward",
        "tasks/accepted", "audit/balanced", "audit/right", "audit/praise_in_failures", "audit/anchors_balanced", "audit/refused",
        "audit/trust", "judge/alarm/praise", "opd/reverse_kl")  # fmt: skip
"""Of a step's measures."""

Tell = Callable[[Mapping[str, Any]], None]


def silent(_: Mapping[str, Any]) -> None:
    """Hears nothing."""


@dataclass(slots=True)
class Models:
    """Inputs of a run.

    Attributes:
        policy, reward, rewrites: model folders; without the last one no model rewrites.
    """

    policy: Path
    reward: Path
    rewrites: Path | None


@dataclass(slots=True)
class Result:
    """Results of a run."""

    arm: str
    seed: int
    steps: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    late: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
