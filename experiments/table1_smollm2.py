"""Table 1 with SmolLM2-135M-Instruct as policy and judge, in sentences and with a rubric: `--model smollm2`, for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from demo.settings import Demonstrations, Pretrained, SupervisedSettings, WarmStart
from experiments.settings import QUICK, Arm
from experiments.table1 import STUDY, TUNED, Table1Settings

_VERDICT = r"\\boxed\{-?1\}"  # a model of this size seldom keeps to a format by itself


@dataclass(frozen=True, kw_only=True)
class SmolLM2Settings(Table1Settings):
    """The arms, tasks and credit of Table 1; what follows from the model is its own."""

    options: ClassVar[Mapping[str, Any]] = {
        "wording": "alfworld", "answer": "whole", "labels": "progress",
    }  # fmt: skip
    warm: WarmStart = field(
        default_factory=lambda: Pretrained(
            policy_data=Demonstrations(
                count=4_000, random_rate=0.12, forget_rate=TUNED.forget_rate, inadmissible_share=0.3
            ),
            judge_data=Demonstrations(
                count=TUNED.judged[0], random_rate=0.2, forget_rate=0.45, inadmissible_share=0.2,
                flip_rate=TUNED.judged[1],
            ),
            policy=SupervisedSettings(learning_rate=1e-4, batch_rows=16, steps=300),
            judge=SupervisedSettings(learning_rate=1e-4, batch_rows=16, steps=300),
        )
    )  # fmt: skip

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Longer answers, held to what is admissible; smaller learning rates and longer rows."""
        document = super().document(arm, seed, models)
        document["models"]["policy"]["max_new_tokens"] = 16
        document["models"]["reward"] |= {"max_new_tokens": 8, "regex": _VERDICT}
        document["env_adapter"]["admissible_only"] = True
        document["reward"] |= {"prompt": "rubric"}
        for role in ("policy", "reward"):
            document["trainer"][role] |= {"learning_rate": 1e-5, "max_tokens": 4096}
        return document


class _Short(SmolLM2Settings):
    horizon: ClassVar[int] = 6


FULL = SmolLM2Settings()
SHORT = _Short(
    steps=2, groups=2, rollouts=2, late_evals=(0,),
    tasks=tuple(
        replace(kind, train=min(kind.train, 4), heldout=min(kind.heldout, 1)) for kind in STUDY.full.pool()
    ),
    warm=Pretrained(
        policy_data=QUICK.warm.policy_data, judge_data=QUICK.warm.judge_data,
        policy=SupervisedSettings(learning_rate=1e-4, batch_rows=2, steps=2),
        judge=SupervisedSettings(learning_rate=1e-4, batch_rows=2, steps=2),
    ),
)  # fmt: skip
"""Two steps on a CPU: shows that everything runs."""
