"""The ablation of the diagnosis: what a rewriter proposes with it, with that of another task, and with none; nothing is trained.

Every choice of the menu is offered (`keep_goal` off), so that whether a goal is kept is the rewriter's doing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.settings import QUICK, Arm, Settings
from experiments.study import Study

SHUFFLED = "shuffled"


def _arm(title: str, **adaptation: Any) -> Arm:
    chosen = {"controller": "llm_rewrite", "keep_goal": False, **adaptation}
    return Arm(title=title, config={"adaptation": chosen}, rewrites=True)


ARMS = {
    "facts": _arm("the missed sub-goal and the judged step"),
    "model": _arm("a model's words about the facts", diagnosis="model"),
    SHUFFLED: _arm("the facts of another task"),
    "none": _arm("no diagnosis", diagnosis_budget=0),
}


@dataclass(frozen=True, kw_only=True)
class DiagnosisSettings(Settings):
    """How much is played: `proposals` an arm, parent and candidate of each `measured` times.

    With `random_choice` the rewriter is no model but a draw from the choices.
    """

    proposals: int = 200
    measured: int = 32
    random_choice: bool = False

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's adaptation, with as many steps as bring enough tasks outside the band."""
        document = super().document(arm, seed, models)
        document["run"]["steps"] = self.proposals  # no more are played than bring so many
        return document


_FULL = DiagnosisSettings()
STUDY = Study(
    name="diagnosis",
    arms=ARMS,
    seeds=(1,),
    full=_FULL,
    quick=replace(
        _FULL, proposals=6, measured=4, random_choice=True, groups=QUICK.groups, rollouts=QUICK.rollouts,
        train_tasks=QUICK.train_tasks, heldout_tasks=QUICK.heldout_tasks, warm=QUICK.warm,
    ),
    run="experiments.diagnosis_run:DiagnosisRun",
    report="experiments.diagnosis_report",
)  # fmt: skip
