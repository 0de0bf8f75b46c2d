"""Targets of the reward model: a judge trained towards each target, while the policy ignores its votes.

experiments/results/judges.md is its plan. The policy learns from outcomes alone, and each target has a judge of its own on the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demo.settings import DemoSettings, Referenced, SupervisedSettings, WarmStart
from experiments.settings import QUICK, Arm, shortened
from experiments.study import Study
from experiments.votes import POLICY_DATA, VotesSettings

SEEDS = (941, 942, 943, 944, 945)  # all of them for tuning
RATES = ("2e-4", "1e-3")
_OPTIONS = {"wording": "terse", "labels": "progress"}
_EVERY = {"reward_band": "none"}

TARGETS: dict[str, dict[str, Any]] = {
    "published": {},
    "centred": {"judge_target": "centred"},
    "monte_carlo": {"judge_target": "monte_carlo", **_EVERY},
    "monte_carlo_state": {"judge_target": "monte_carlo", "target_place": "state", **_EVERY},
    "pairs": {"judge_target": "pairs", **_EVERY},
    "pairs_state": {"judge_target": "pairs", "target_place": "state", **_EVERY},
    "privileged": {"judge_target": "privileged", **_EVERY},
}
"""Options of the arithmetic. Where a group of one outcome teaches nothing by itself, or no outcome takes part, no band is needed."""

ARMS = {rate: Arm(title=f"rate {rate}", config={"rate": float(rate)}) for rate in RATES}
"""By the judges' learning rate."""
_PLAIN = ("published", "centred", "monte_carlo")
WEAK_ARMS = {
    rate: Arm(title=f"rate {rate}", config={"rate": float(rate), "targets": _PLAIN})
    for rate in RATES
}


def targets_of(arm: Arm) -> dict[str, dict[str, Any]]:
    """Return the targets that an arm compares: all that it does not leave out."""
    return {name: TARGETS[name] for name in arm.config.get("targets", TARGETS)}


@dataclass(frozen=True, kw_only=True)
class JudgesSettings(VotesSettings):
    """The regime of the planted votes, with a judge that has learnt from few labels, a tenth of them wrong."""

    warm: WarmStart = field(
        default_factory=lambda: WarmStart(
            policy_data=POLICY_DATA,
            judge_data=Referenced(
                count=1_500,
                random_rate=0.2,
                forget_rate=0.45,
                inadmissible_share=0.2,
                flip_rate=0.1,
            ),
            judge=SupervisedSettings(learning_rate=2e-3, batch_rows=32, steps=900),
        )
    )

    def warm_start(self, seed: int) -> DemoSettings:
        """Return the judge's labels say whether the shortest plan got shorter than it ever was."""
        return replace(super().warm_start(seed), options=_OPTIONS)

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the policy's run: credited by outcomes, no judge."""
        plain = replace(arm, config={"options": {"use_votes": False}, "rate": 5e-4})
        document = super().document(plain, seed, models)
        document["env_adapter"]["options"] = _OPTIONS
        document["reward"]["votes"] = 3
        return document

    def judge(
        self, arm: Arm, seed: int, models: Mapping[str, str], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the same with a judge that trains on all votes as `options` say."""
        document = self.document(arm, seed, models)
        document["algorithm"]["overrides"] |= {"train_reward_model": True, **options}
        document["trainer"]["reward"] |= {"learning_rate": arm.config["rate"], "max_rows": 0}
        return document


_FULL = JudgesSettings(steps=30, late_evals=(0,))
STUDY = Study(
    name="judges",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=shortened(
        _FULL,
        warm=replace(QUICK.warm, judge_data=Referenced(**vars(QUICK.warm.judge_data))),
    ),
    run="experiments.judges_run:JudgesRun",
    report="experiments.judges_report",
    smoke=RATES[:1],
)  # fmt: skip

_LITTLE = replace(
    _FULL.warm,
    judge_data=replace(_FULL.warm.judge_data, count=150, flip_rate=0.3),
    judge=replace(_FULL.warm.judge, steps=300),
)
WEAK = replace(
    STUDY, name="judges_weak", arms=WEAK_ARMS, seeds=SEEDS[2:], full=replace(_FULL, warm=_LITTLE)
)
"""The same with a judge that knows little: a tenth of the episodes, three of ten labels wrong, a third of the updates."""
