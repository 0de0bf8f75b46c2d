"""The experiment on auxiliary objectives: policy gradient alone, with state prediction and inverse dynamics, and with placebo.

Everything but the objectives is the same in the three arms of an estimator: warm start, tasks, order, updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from demo.settings import SupervisedSettings, WarmStart
from experiments.settings import QUICK, SEEDS, Arm, Settings, shortened
from experiments.study import Study

ESTIMATORS = ("grpo", "gigpo")
_NAMES = {"grpo": "GRPO", "gigpo": "GiGPO"}
LAMBDA0 = 0.05
WORDING: dict[str, Any] = {"prompt": "terse", "noop_texts": ["fail"]}
"""Options of `[methods.envrl]`: the wording of these tasks, in the run as in the warm start."""
_WARM = WarmStart(
    auxiliary=6_000,
    policy=SupervisedSettings(learning_rate=3e-3, batch_rows=16, steps=2_800),
)
"""The policy has seen both objectives' prompts before: 12,000 chats more, and updates in proportion."""


def _arms() -> dict[str, Arm]:
    weights = {"sp": {"lambda0": LAMBDA0}, "id": {"lambda0": LAMBDA0}}
    found = {}
    for preset in ESTIMATORS:
        for name, title, aux in (
            (preset, "alone", {}),
            (f"{preset}_envrl", "with SP and ID", weights),
            (f"{preset}_placebo", "with shuffled targets", weights | {"placebo": "shuffle"}),
        ):
            found[name] = Arm(
                title=f"{_NAMES[preset]} {title}", families=("tasks",),
                config={"preset": preset, "aux": aux},
            )  # fmt: skip
    return found


ARMS = _arms()


@dataclass(frozen=True, kw_only=True)
class EnvrlSettings(Settings):
    """How much is played; `probe` held-out transitions at most are predicted in each evaluation."""

    probe: int = 512
    warm: WarmStart = _WARM

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's preset as it stands, no judge, no adaptation."""
        document = super().document(arm, seed, models)
        document["algorithm"] = {"preset": arm.config["preset"]}
        aux = arm.config["aux"]
        document["methods"] = {"envrl": WORDING | aux} if aux else {}
        return document


_FULL = EnvrlSettings()
STUDY = Study(
    name="envrl",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=shortened(_FULL, warm=replace(QUICK.warm, auxiliary=32)),
    run="experiments.envrl_run:EnvrlRun",
    report="experiments.envrl_report",
    plots="experiments.envrl_report",
)  # fmt: skip
