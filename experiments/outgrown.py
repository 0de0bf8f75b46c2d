"""Tasks that are too easy soon: what adapting them adds, on such tasks and on harder ones; docs/experiments/outgrown-plan.md is the plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from demo.settings import DemoSettings, SupervisedSettings, WarmStart
from experiments.settings import QUICK, Arm, Kind
from experiments.study import Study
from experiments.table1 import ARMS as TABLE1
from experiments.table1 import HARD, SHOWN, Table1Settings

SEEDS = (31, 32, 33, 34, 35, 36)
TUNING_SEEDS = (941, 942)  # none of the reported ones
MAIN = ("O", "N", "A", "E")
"""On all seeds; the other arms on the first three."""
PLANNED = (("A", "O"), ("E", "O"), ("E", "N"))
"""The first of each pair is to be above the second."""

_ROOM = HARD | {"commands": None}
_SMALL = {"receptacles": [3, 5], "distractors": [0, 2]}
_LARGE = {"receptacles": [8, 10], "distractors": [2, 4]}
_EASY, _OTHER = {"goals": ["place"]}, {"goals": ["two", "heat", "cool", "clean"]}
_ADAPTATION = {"max_pending": 4, "candidates": 1, "keep_goal": False}


def _adapted(title: str, like: str = "O_adapted", rewriter: str = "random", **change: Any) -> Arm:
    """An arm of Table 1 with rewrites, by lot unless it says otherwise."""
    arm = TABLE1[like]
    changed = {"adaptation": {**_ADAPTATION, **change}}
    return replace(
        arm, title=title, config={**arm.config, "sections": changed, "rewriter": rewriter}
    )


ARMS = {
    "O": TABLE1["O"],
    "N": _adapted("E with unchanged candidates", "E", null_control=1.0),
    "A": _adapted("outcome only, tasks adapted"),
    "E": _adapted("step scores, reward model trained, tasks adapted", "E"),
    "A_kept": _adapted("A, the goal kept where it can be", keep_goal=True),
    "A_room": _adapted("A, the room alone changes", max_drift=0.19),
    "A_model": _adapted("A, rewritten by SmolLM2", rewriter=""),
}


@dataclass(frozen=True, kw_only=True)
class OutgrownSettings(Table1Settings):
    """A policy that soon solves its pool."""

    tasks: tuple[Kind, ...] = (
        Kind("id", _ROOM | _SMALL | _EASY, train=64, heldout=128),
        Kind("rooms", _ROOM | _LARGE | _EASY, heldout=128),
        Kind("goals", _ROOM | _SMALL | _OTHER, heldout=128),
        Kind("both", _ROOM | _LARGE | _OTHER, heldout=128),
    )
    warm: WarmStart = field(
        default_factory=lambda: replace(
            Table1Settings().warm,
            policy_data=replace(Table1Settings().warm.policy_data, forget_rate=0.5),
            policy=SupervisedSettings(learning_rate=3e-3, batch_rows=16, steps=1000),
        )
    )

    def warm_start(self, seed: int) -> DemoSettings:
        """Demonstrations of all goals in rooms of all sizes."""
        return replace(super().warm_start(seed), generate=SHOWN | {"receptacles": [3, 10]})

    def strong(self) -> None:
        """Nobody plays the accepted tasks again."""


_FULL = OutgrownSettings()
OUTGROWN = Study(
    name="outgrown",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=replace(
        _FULL, steps=2, groups=QUICK.groups, rollouts=QUICK.rollouts, late_evals=(0,), warm=QUICK.warm,
        tasks=tuple(replace(k, train=min(k.train, 8), heldout=min(k.heldout, 4)) for k in _FULL.tasks),
    ),
    run="experiments.loop",
    report="experiments.outgrown_report",
    plots="experiments.outgrown_report",
    further={name: SEEDS[:3] for name in ARMS if name not in MAIN},
    starts_alike=True,
)  # fmt: skip

_BROAD = {"id": 32, "goals": 32}
BROAD = replace(
    OUTGROWN,
    name="outgrown_broad",
    arms={"O": TABLE1["O"]},
    seeds=SEEDS[:3],
    full=replace(_FULL, tasks=tuple(replace(k, train=_BROAD.get(k.name, 0)) for k in _FULL.tasks)),
    plots="",
)
"""Half of the pool are other goals from the start: what somebody makes who knows what will be asked for."""
