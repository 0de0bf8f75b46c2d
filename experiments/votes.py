"""The experiment on how votes enter: planted votes, so that a rule can be judged before any judge is.

Arms are a credit rule, a planted judge and a learning rate. experiments/results/votes.md is its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demo.settings import SHOWN, Demonstrations, DemoSettings, SupervisedSettings, WarmStart
from experiments.settings import HARD, QUICK, Arm, Asks, Planted, Settings
from experiments.study import Study

SEEDS = (901, 902, 903, 904, 905)  # all of them for tuning; none is reported by another experiment
RATES = ("2e-4", "5e-4", "1e-3")
BASELINE = "outcome"
_HORIZON = 24
POLICY_DATA = Demonstrations(
    count=12_000, random_rate=0.12, forget_rate=0.85, inadmissible_share=0.3
)

RULES: dict[str, dict[str, Any]] = {
    BASELINE: {"estimator": "group", "use_votes": False},
    "outcome_index": {"use_votes": False},
    "lam_1": {"lam": 1.0},
    "lam_1_mixed": {"lam": 1.0, "mixed_groups_only": True},
    "within_4": {"estimator": "within", "lam": 0.4},
    "within_8": {"estimator": "within", "lam": 0.8},
}
"""Options of the arithmetic, in addition to those of all arms."""
_TITLES = {
    BASELINE: "outcome only, whole trajectories compared",
    "outcome_index": "outcome only, steps of equal index compared",
    "lam_1": "votes added at lam 1, as published",
    "lam_1_mixed": "the same, only in groups with both outcomes",
    "within_4": "outcome, and votes that add up to 0 in a trajectory, also in groups that all fail, lam 0.4",
    "within_8": "the same, lam 0.8",
}


def _right(asks: Asks) -> dict[str, Planted]:
    """Planted judges that are right so often, by name."""
    return {f"{asks}_{q}": Planted(asks=asks, right=q / 100) for q in (100, 90, 75, 60)}


_ALL = _right("progress")
_JUDGES: dict[str, dict[str, Planted]] = {
    "lam_1": _ALL | {"sensible_100": Planted(asks="sensible"), "best_100": Planted(asks="best")},
    "lam_1_mixed": {"progress_100": Planted()},
    "within_4": _ALL | _right("best"),
    "within_8": _ALL | _right("difference"),
}


def _arms() -> Iterator[tuple[str, Arm]]:
    for rule, options in RULES.items():
        judges: Mapping[str, Planted | None] = _JUDGES.get(rule, {"": None})
        for judge, planted in judges.items():
            title = f"{_TITLES[rule]}; {judge}" if judge else _TITLES[rule]
            for rate in RATES:
                config = {"options": options, "rate": float(rate)}
                yield (
                    f"{rule}{'-' * bool(judge)}{judge}@{rate}",
                    Arm(title=title, config=config, planted=planted),
                )


ARMS = dict(_arms())
"""By rule, judge and learning rate, as in `within_8-progress_100@5e-4`."""


@dataclass(frozen=True, kw_only=True)
class VotesSettings(Settings):
    """How much is played: hard tasks only, a warm start that mostly forgets the treatment, one vote a step.

    One vote, because several with independent errors would together be right more often than a judge of that accuracy is.
    """

    steps: int = 40
    kinds: tuple[Mapping[str, Any], ...] = (HARD | {"horizon": _HORIZON, "commands": [7, 12]},)
    train_tasks: int = 256
    heldout_tasks: int = 256
    late_evals: tuple[int, ...] = (30, 20, 10, 0)
    warm: WarmStart = field(
        default_factory=lambda: WarmStart(
            policy_data=POLICY_DATA,
            judge_data=QUICK.judge_data,  # not used
            judge=SupervisedSettings(learning_rate=3e-3, batch_rows=8, steps=1),
        )
    )

    def warm_start(self, seed: int) -> DemoSettings:
        """Demonstrations as long as these tasks ask for."""
        return replace(super().warm_start(seed), generate=SHOWN | {"horizon": _HORIZON})

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's rule and learning rate, the policy trained alone, no KL term, no floor."""
        document = self.shared_document(seed, models)
        base = {"std_floor": 0.0, "kl_beta": 0.0, "train_reward_model": False}
        document["algorithm"]["overrides"] = base | dict(arm.config["options"])
        document["trainer"]["policy"]["learning_rate"] = arm.config["rate"]
        document["env_adapter"]["max_steps"] = _HORIZON
        document["reward"]["votes"] = 1
        return document


_FULL = VotesSettings()
STUDY = Study(
    name="votes",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=replace(_FULL, steps=1, groups=4, rollouts=2, train_tasks=8, heldout_tasks=4, late_evals=(0,), warm=QUICK),
    report="experiments.votes_report",
    smoke=["-".join([rule, *list(_JUDGES.get(rule, ()))[:1]]) + "@5e-4" for rule in RULES],
)  # fmt: skip
