"""Table 1's arms on tasks that the policy almost never solves: what adapting them adds where outcomes say nothing.

experiments/results/table1.md says what came of it. All seeds are for tuning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from demo.settings import DemoSettings, SupervisedSettings, WarmStart
from experiments.report import Results, at_end, at_start, markdown
from experiments.settings import Kind
from experiments.study import Study
from experiments.table1 import ARMS as TABLE1
from experiments.table1 import HARD, SHOWN, Table1Settings, adapted

_TWO = HARD | {"receptacles": [9, 10], "goals": ["two"], "commands": None}
_LARGER = _TWO | {"receptacles": [11, 12], "kinds": [*HARD["kinds"], "dresser", "safe", "sofa"]}
_ADAPTATION = {"max_pending": 4, "candidates": 1, "max_drift": 0.19}
"""A change of goal, object, target or hint is a drift of 0.2 or more."""


ARMS = {
    "O": TABLE1["O"],
    "A": adapted("O_adapted", "the same goals in easier rooms", "boldest", _ADAPTATION),
    "A_mixed": adapted(
        "O_adapted",
        "A, half of the slots as they began",
        "boldest",
        {**_ADAPTATION, "original_share": 0.5},
    ),
    "A_lot": adapted("O_adapted", "A, the change of the room drawn by lot", "random", _ADAPTATION),
}
TUNING_SEEDS = (928, 929, 930)
_TITLES = (
    "arm", "seed", "ID, sampled: start", "end", "ID, greedy", "OOD, sampled", "OOD, greedy", "training tasks, last 5 steps", "in the band", "tasks replaced",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FrontierSettings(Table1Settings):
    """A policy that knows small rooms, and tasks in large ones."""

    steps: int = 80
    tasks: tuple[Kind, ...] = (
        Kind("id", _TWO, train=64, heldout=256),
        Kind("ood", _LARGER, heldout=128),
    )
    warm: WarmStart = field(
        default_factory=lambda: replace(
            Table1Settings().warm,
            policy_data=replace(
                Table1Settings().warm.policy_data, random_rate=0.3, forget_rate=0.3
            ),
            policy=SupervisedSettings(learning_rate=3e-3, batch_rows=16, steps=1000),
        )
    )

    def warm_start(self, seed: int) -> DemoSettings:
        """Demonstrations of rooms of three to five receptacles."""
        shown = SHOWN | {"receptacles": [3, 5]}
        return replace(super().warm_start(seed), generate=shown)

    def strong(self) -> None:
        """Return None: the accepted tasks are not played again."""


_FULL = FrontierSettings()
FRONTIER = Study(
    name="frontier",
    arms=ARMS,
    seeds=TUNING_SEEDS,
    full=_FULL,
    quick=_FULL.short(),
    report="experiments.frontier",
)


def table(results: Results) -> str:
    """Return a row a run: success on held-out tasks, before and as the mean of the last two evaluations, and what was played."""
    held = ("sampled/id", "greedy/id", "sampled/ood", "greedy/ood")
    rows = []
    for arm in ARMS:
        for seed in sorted(seed for name, seed in results if name == arm):
            one = results[arm, seed]
            values = [at_start(held[0])(one), *(at_end(name)(one) for name in held)]
            values += [one["late"]["success"], one["late"]["in_band"]]
            shown = ["" if value is None else f"{value:.3f}" for value in values]
            replaced = one["tasks"]["proposals"].get("accepted", 0)
            rows.append([f"{ARMS[arm].title} (`{arm}`)", str(seed), *shown, str(replaced)])
    return markdown(_TITLES, rows)
