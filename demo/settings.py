"""Settings of the demo. The runs' own document is `configs/demo.toml` or `configs/demo-smollm2.toml`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from environments.household.careless import SMALL

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2_FOLDER = "smollm2-135m-instruct"

SHOWN = SMALL | {
    "receptacles": [3, 8],
    "distractors": [0, 4],
    "goals": ["place", "heat", "cool", "clean", "two"],
}
"""Tasks of all sizes."""
HORIZON = 24
SPARSE = SMALL | {
    "receptacles": [7, 8],
    "distractors": [2, 4],
    "goals": ["heat", "cool", "clean"],
    "horizon": HORIZON,
    "commands": [7, 12],
}
"""Long tasks, all of which need a treatment: a policy that forgets it hardly ever succeeds."""


@dataclass(frozen=True, kw_only=True)
class SupervisedSettings:
    learning_rate: float
    batch_rows: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """How many episodes are demonstrated, and how carelessly (see `demo.demonstrations`).

    Attributes:
        random_rate, forget_rate, confuse_rate: of several rates each episode has the next one.
        together: the votes on an episode train a judge in one update, which computes the episode once.
        reference: the judge sees a solution of the task.
        generate: options of the generator, of which each makes an equal share of the tasks; empty for those of the settings.
    """

    count: int
    random_rate: float | tuple[float, ...]
    forget_rate: float | tuple[float, ...]
    inadmissible_share: float
    flip_rate: float = 0.0
    confuse_rate: float | tuple[float, ...] = 0.0
    together: bool = False
    reference: bool = False
    generate: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lapse:
    """A second supervised phase of the policy, on demonstrations with other faults."""

    data: Demonstrations
    job: SupervisedSettings


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The supervised first phase: careless demonstrations for the policy, labelled ones of players from careful to wild for the judge.

    The demonstrator forgets the treatment in most episodes that need one, so that a policy which imitates it has something
    to learn from outcomes and votes. After a `lapse` the policy hardly ever does what it once could.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    max_positions: int = 1024
    policy_data: Demonstrations = Demonstrations(
        count=12_000, random_rate=0.12, forget_rate=0.6, inadmissible_share=0.3
    )
    judge_data: Demonstrations = Demonstrations(
        count=6_000,
        random_rate=(0.05, 0.12, 0.25, 0.45),
        forget_rate=(0.0, 0.4, 0.85),
        inadmissible_share=0.2,
        together=True,
    )
    policy: SupervisedSettings = SupervisedSettings(learning_rate=3e-3, batch_rows=16, steps=1600)
    judge: SupervisedSettings | None = SupervisedSettings(
        learning_rate=3e-3, batch_rows=96, steps=1100
    )
    lapse: Lapse | None = None

    def fields(self) -> dict[str, Any]:
        """Return what names the models, without what is off: a further field leaves the names of earlier models as they are."""
        found = asdict(self)
        lapse = [found["lapse"]["data"]] if found["lapse"] else []
        if not lapse:
            del found["lapse"]
        for data in (found["policy_data"], found["judge_data"], *lapse):
            for name in ("together", "reference", "generate", "confuse_rate"):
                if not data[name]:
                    del data[name]
        return found


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Everything that decides what the demo does; its digest names the cache folder of the warm start.

    Attributes:
        generate: options of the generator for the demonstrated tasks.
        played: those of the tasks of the runs; empty if they are the same.
    """

    seed: int = 1
    train_tasks: int = 256
    heldout_tasks: int = 128
    generate: dict[str, Any] = field(default_factory=lambda: {**SMALL})
    played: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=lambda: {"wording": "terse"})
    warm_start: WarmStart = WarmStart()

    def digest(self) -> str:
        """Short name of the warm start: changes with everything that goes into it."""
        parts = {
            "seed": self.seed,
            "generate": self.generate,
            "options": self.options,
            "warm": self.warm_start.fields(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


_FORGETS = Demonstrations(count=12_000, random_rate=0.12, forget_rate=0.6, inadmissible_share=0.3)
LAPSED = WarmStart(
    policy_data=_FORGETS,
    lapse=Lapse(
        data=replace(_FORGETS, count=2400, forget_rate=1.0, generate=(SPARSE,)),
        job=SupervisedSettings(learning_rate=5e-4, batch_rows=16, steps=130),
    ),
    judge_data=replace(WarmStart().judge_data, count=300, reference=True),  # for its words
    judge=None,
)
"""A policy that can treat and hardly ever does; the judge is that of the repository."""


def sparse(seed: int, warm: WarmStart = LAPSED) -> DemoSettings:
    """Return the settings of models for long tasks: demonstrations of all sizes, labels that say whether the plan got shorter than ever."""
    return DemoSettings(
        seed=seed,
        train_tasks=64,
        generate=SHOWN | {"horizon": HORIZON},
        options={"wording": "terse", "labels": "progress"},
        played=SPARSE,
        warm_start=warm,
    )
