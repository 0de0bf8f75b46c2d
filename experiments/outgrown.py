"""Tasks that are too easy soon: what adapting them adds, on such tasks and on harder ones; experiments/results/outgrown.md names the plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from demo.settings import DemoSettings, SupervisedSettings, WarmStart
from experiments.comparison import Comparison
from experiments.settings import Kind
from experiments.study import Study
from experiments.table1 import ARMS as TABLE1
from experiments.table1 import HARD, SHOWN, Table1Settings, adapted

SEEDS = (31, 32, 33, 34, 35, 36)
TUNING_SEEDS = (941, 942)  # none of the reported ones
MAIN = ("O", "N", "A", "E")
"""On all seeds; the other arms on the first three."""
PLANNED = (("A", "O"), ("E", "O"), ("E", "N"))
"""The first of each pair is to be above the second."""

_ROOM = HARD | {"commands": None}  # plans of any length
_SMALL = {"receptacles": [3, 5], "distractors": [0, 2]}
_LARGE = {"receptacles": [8, 10], "distractors": [2, 4]}
_EASY, _OTHER = {"goals": ["place"]}, {"goals": ["two", "heat", "cool", "clean"]}
_HELD_OUT = {
    "": "all held-out tasks",
    "/id": "the pool's",
    "/rooms": "larger rooms",
    "/goals": "other goals",
    "/both": "both",
}
_ADAPTATION = {"max_pending": 4, "candidates": 1, "keep_goal": False}


ARMS = {
    "O": TABLE1["O"],
    "N": adapted(
        "E", "E with unchanged candidates", "random", {**_ADAPTATION, "null_control": 1.0}
    ),
    "A": adapted("O_adapted", "outcome only, tasks adapted", "random", _ADAPTATION),
    "E": adapted("E", "step scores, reward model trained, tasks adapted", "random", _ADAPTATION),
    "A_kept": adapted(
        "O_adapted",
        "A, the goal kept where it can be",
        "random",
        {**_ADAPTATION, "keep_goal": True},
    ),
    "A_room": adapted(
        "O_adapted", "A, the room alone changes", "random", {**_ADAPTATION, "max_drift": 0.19}
    ),
    "A_model": adapted("O_adapted", "A, rewritten by SmolLM2", "", _ADAPTATION),
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


_FULL = OutgrownSettings()
OUTGROWN = Study(
    name="outgrown",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=_FULL.short(),
    compared=Comparison(
        name="outgrown",
        title="Tasks that are too easy soon: what adapting them adds",
        known="what rewriting tasks adds here once a policy has outgrown its pool",
        arms=ARMS,
        main=MAIN,
        planned=PLANNED,
        pairs=(("E", "A"), ("N", "O"), *((name, "A") for name in ARMS if name not in MAIN)),
        tuned=TUNING_SEEDS,
        measures={
            mode + end: f"{kind}, {mode}"
            for mode in ("sampled", "greedy")
            for end, kind in _HELD_OUT.items()
        },
    ),
    further={name: SEEDS[:3] for name in ARMS if name not in MAIN},
)

_BROAD = {"id": 32, "goals": 32}
BROAD = replace(
    OUTGROWN,
    name="outgrown_broad",
    arms={"O": TABLE1["O"]},
    seeds=SEEDS[:3],
    full=replace(_FULL, tasks=tuple(replace(k, train=_BROAD.get(k.name, 0)) for k in _FULL.tasks)),
)
"""Half of the pool are other goals from the start: a pool made with knowledge of the held-out goals."""
