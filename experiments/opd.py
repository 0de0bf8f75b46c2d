"""On-policy distillation next to GRPO: how soon a student plays nine tenths as well as its teacher; experiments/results/opd.md is its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demo.settings import HORIZON, LAPSED, WarmStart, sparse
from demo.warm_start import tiny_models
from experiments.settings import Arm
from experiments.sparse import SparseSettings
from experiments.study import Study

SEEDS = tuple(range(1, 11))
TUNING_SEEDS = (967, 968)  # none of the reported ones
SHARES = (0.9, 0.25)
"""Shares of the teacher's success at which a student has arrived; the first is the primary one."""
_STEPS, _EVERY = 32, 4  # steps, and those from one evaluation to the next

TEACHER = replace(
    LAPSED,
    policy_data=replace(LAPSED.policy_data, random_rate=0.05, forget_rate=0.0),
    lapse=None,
)
"""A policy of the student's size that never learned to forget the treatment."""
ARMS = {
    "teacher": Arm(title="the teacher, measured", config={"preset": "grpo"}),
    "grpo": Arm(title="outcomes", config={"preset": "grpo"}),
    "opd": Arm(title="the teacher's scores", config={"preset": "opd"}),
}


@dataclass(frozen=True, kw_only=True)
class OpdSettings(SparseSettings):
    """How much is played: the tasks of sparse outcomes and their policies, which have forgotten the treatment, and one teacher that has not."""

    steps: int = _STEPS
    late_evals: tuple[int, ...] = tuple(range(0, _STEPS, _EVERY))
    teacher: WarmStart = TEACHER

    def models(self, seed: int, tell: Callable[[str], None]) -> tuple[Path, Path]:
        """Return the folders of the seed's student, and of the teacher in the place of the judge: one for all seeds."""
        student, teacher = self.warm_start(seed), sparse(900, self.teacher)
        return tiny_models(student, tell)[0], tiny_models(teacher, tell)[0]

    def short(self) -> OpdSettings:
        """As little as shows that everything runs."""
        little = super().short()
        assert isinstance(little, OpdSettings)
        return replace(little, teacher=replace(little.warm, lapse=None))

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's preset; the teacher is measured in the student's place."""
        document, preset = self.shared_document(seed, models), arm.config["preset"]
        document["algorithm"] = {
            "preset": preset,
            "overrides": {"kl_beta": 0.0, "std_floor": 0.0},
        }
        document["trainer"]["policy"]["learning_rate"] = 1e-3
        document["run"]["eval_greedy"] = False
        document["env_adapter"]["max_steps"] = HORIZON
        document["reward"]["kind"] = "opd" if preset == "opd" else "votes"
        if arm == ARMS["teacher"]:
            document["models"]["policy"]["path"] = models["reward"]
            document["run"] |= {"steps": 1, "eval_rollouts": 4}
        return document


_FULL = OpdSettings()
STUDY = Study(
    name="opd",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=_FULL.short(),
    report="experiments.opd_report",
)
