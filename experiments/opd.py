"""On-policy distillation next to GRPO: how soon a student plays nine tenths as well as its teacher; experiments/results/opd.md is its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demo.settings import Demonstrations, DemoSettings, SupervisedSettings, WarmStart
from demo.warm_start import tiny_models
from environments.household.careless import SMALL
from experiments.settings import QUICK, Arm, Settings
from experiments.study import Study

SEEDS = tuple(range(1, 11))
TUNING_SEEDS = (901, 902, 903)  # none of the reported ones
SHARE = 0.9
"""Share of the teacher's success at which a student has arrived."""
_STEPS, _EVERY = 40, 4  # steps, and those from one evaluation to the next

# no judge takes part; only its words enter, so that teacher and student share the vocabulary
STUDENT = replace(
    WarmStart(),
    judge_data=replace(WarmStart().judge_data, count=500),
    judge=None,
)
TEACHER = replace(
    STUDENT,
    hidden=128,
    layers=3,
    policy_data=Demonstrations(
        count=24_000, random_rate=0.05, forget_rate=0.0, inadmissible_share=0.3
    ),
    policy=SupervisedSettings(learning_rate=2e-3, batch_rows=16, steps=3000),
)
ARMS = {
    "teacher": Arm(title="the teacher, measured", config={"preset": "grpo", "rate": 5e-4}),
    "grpo": Arm(title="outcomes", config={"preset": "grpo", "rate": 5e-4}),
    "opd": Arm(title="the teacher's scores", config={"preset": "opd", "rate": 5e-4}),
}


@dataclass(frozen=True, kw_only=True)
class OpdSettings(Settings):
    """How much is played: the demo's small games and warm start, and a larger teacher of careful demonstrations."""

    steps: int = _STEPS
    kinds: tuple[Mapping[str, Any], ...] = (SMALL,)
    train_tasks: int = 256
    heldout_tasks: int = 128
    late_evals: tuple[int, ...] = tuple(range(0, _STEPS, _EVERY))
    warm: WarmStart = STUDENT
    teacher: WarmStart = TEACHER

    def warm_start(self, seed: int) -> DemoSettings:  # noqa: ARG002
        """Return the student: one for all seeds, which draw tasks and samples."""
        return DemoSettings(seed=901, warm_start=self.warm)

    def models(self, seed: int, tell: Callable[[str], None]) -> tuple[Path, Path]:
        """Return the folders of the student and of the teacher, which takes the place of the judge: one for all seeds."""
        student, _ = super().models(seed, tell)
        teacher, _ = tiny_models(DemoSettings(seed=900, warm_start=self.teacher), tell)
        return student, teacher

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: the arm's preset and learning rate; the teacher is measured in the student's place."""
        document, config = self.shared_document(seed, models), arm.config
        document["algorithm"] = {"preset": config["preset"]}
        document["run"]["eval_greedy"] = False
        document["reward"]["kind"] = "opd" if config["preset"] == "opd" else "votes"
        document["trainer"]["policy"]["learning_rate"] = config["rate"]
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
    quick=replace(_FULL, steps=1, groups=2, rollouts=2, train_tasks=4, heldout_tasks=4, late_evals=(0,), warm=QUICK,
                  teacher=replace(QUICK, hidden=32)),
    report="experiments.opd_report",
)  # fmt: skip
