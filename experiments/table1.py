"""The paper's order on this machine: outcome only < + step scores < + reward model trained < + tasks adapted.

experiments/results/table1.md names its plan. What tuning may still change stands in `Tuned`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from demo.settings import Demonstrations, DemoSettings, SupervisedSettings, WarmStart
from experiments.comparison import Comparison
from experiments.settings import QUICK, Arm, Kind, Settings
from experiments.study import Study

SEEDS = (11, 12, 13, 14, 15, 16)
TUNING_SEEDS = (921, 922, 923, 924, 925)  # none of the reported ones
MAIN = ("O", "P", "R", "E", "N")
"""On all seeds; the other arms on the first three."""
ORDER = ("O", "P", "R", "E")
PLANNED = (("P", "O"), ("R", "P"), ("E", "R"), ("E", "O"), ("E", "N"))
"""The first of each pair is to be above the second."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Choices of the tuning seeds, equal for all arms unless noted.

    Attributes:
        policy_rate, judge_rate: step sizes.
        algorithm: of all arms.
        outcome: how arms without votes credit a step.
        votes: how arms with votes credit a step.
        target: what the reward model is trained towards, where it is.
        adaptation: of the arms that adapt.
        forget_rate: of the policy's demonstrations: how often the treatment is left out.
        judged: labels of the judge's warm start, in episodes, and the share of wrong ones.
    """

    policy_rate: float = 5e-4
    judge_rate: float = 5e-4
    algorithm: Mapping[str, Any] = field(
        default_factory=lambda: {"std_floor": 0.0, "kl_beta": 0.0, "acceptance": "paper"}
    )
    outcome: Mapping[str, Any] = field(
        default_factory=lambda: {"use_votes": False, "estimator": "group"}
    )
    votes: Mapping[str, Any] = field(
        default_factory=lambda: {
            "estimator": "within",
            "lam": 0.8,
            "vote_weight": "trust",
            "vote_share": 0.3,
            "mixed_groups_only": True,
        }
    )
    target: Mapping[str, Any] = field(
        default_factory=lambda: {"judge_target": "monte_carlo", "reward_band": "none"}
    )
    adaptation: Mapping[str, Any] = field(
        default_factory=lambda: {"max_pending": 2, "max_rollouts": 8, "pairs_on_top": False}
    )
    forget_rate: float = 0.85
    judged: tuple[int, float] = (500, 0.2)


TUNED = Tuned()

_HORIZON = 24
_SERVICE: dict[str, Any] = {
    "lamps": 0.0,
    "horizon": _HORIZON,
    "objects": ["mug", "plate", "apple", "potato", "cup", "egg", "tomato", "bowl"],
    "kinds": [
        "cabinet", "drawer", "fridge", "microwave", "sinkbasin", "countertop", "shelf", "diningtable", "desk", "sidetable",
    ],
}  # fmt: skip
_GOALS = ["heat", "cool", "clean", "two"]
HARD = _SERVICE | {
    "receptacles": [7, 8], "distractors": [2, 4], "goals": _GOALS, "commands": [7, 12],
}  # fmt: skip
MEDIUM = _SERVICE | {"receptacles": [4, 5], "distractors": [1, 2], "goals": ["place", *_GOALS]}
LARGE = HARD | {"receptacles": [9, 10]}
LOOK = HARD | {"goals": ["look"], "lamps": 1.0, "commands": None}
"""The goal type that the warm start has and the pool has not."""
SHOWN = _SERVICE | {
    "receptacles": [3, 8], "distractors": [0, 4], "goals": ["place", "look", *_GOALS], "lamps": 0.3,
}  # fmt: skip

_KINDS = (
    Kind("id", HARD, train=192, heldout=256),
    Kind("medium", MEDIUM, train=64),
    Kind("ood", LARGE, heldout=64),
    Kind("ood", LOOK, heldout=64),
)


def _arm(
    title: str,
    *,
    votes: bool = True,
    trained: bool = False,
    adapted: bool = False,
    rewriter: str = "",
    **sections: Any,
) -> Arm:
    """Return an arm by the parts of the loop that it has, who takes the model's place in them, and what else it changes in sections."""
    parts = {"votes": votes, "trained": trained, "adapted": adapted}
    others = {
        "judge_of": "",
        "rewriter": rewriter,
        "sections": sections,
    }  # the first is of recorded runs
    return Arm(title=title, config=parts | others, rewrites=adapted)


ARMS: dict[str, Arm] = {
    "O": _arm("outcome only", votes=False),
    "P": _arm("step scores of a frozen judge"),
    "R": _arm("+ reward model trained", trained=True),
    "E": _arm("+ tasks adapted", trained=True, adapted=True),
    "N": _arm(
        "E with unchanged candidates", trained=True, adapted=True, adaptation={"null_control": 1.0}
    ),
    "O_index": _arm(
        "outcome only, steps of equal index compared",
        votes=False,
        algorithm={
            "overrides": {**TUNED.algorithm, "use_votes": False, "train_reward_model": False}
        },
    ),
    "O_adapted": _arm("outcome only, tasks adapted", votes=False, adapted=True),
    "shuffled": _arm("P with shuffled votes", reward={"kind": "shuffled"}),
    "planted_75": _arm("votes right with .75", reward={"kind": "oracle", "accuracy": 0.75}),
    "planted_90": _arm("votes right with .9", reward={"kind": "oracle", "accuracy": 0.9}),
    "log_ratio": _arm("Progress Advantage", reward={"kind": "log_ratio"}),
    "random": _arm("E, rewritten by lot", trained=True, adapted=True, rewriter="random"),
}


def adapted(like: str, title: str, rewriter: str, adaptation: Mapping[str, Any]) -> Arm:
    """Return an arm like one that adapts, with a rewriter (none: the model) and settings of its own."""
    arm = ARMS[like]
    changed = {"sections": {"adaptation": dict(adaptation)}, "rewriter": rewriter}
    return replace(arm, title=title, config={**arm.config, **changed})


BASELINES = {
    "O_index": "O", "O_adapted": "O", "shuffled": "P", "planted_75": "P", "planted_90": "P", "log_ratio": "P", "random": "E",
}  # fmt: skip
"""The arm that each further arm is compared with."""


@dataclass(frozen=True, kw_only=True)
class Table1Settings(Settings):
    """How much is played, with what was tuned."""

    options: ClassVar[Mapping[str, Any]] = {"wording": "terse", "labels": "progress"}
    horizon: ClassVar[int] = _HORIZON

    steps: int = 60
    tasks: tuple[Kind, ...] = _KINDS
    late_evals: tuple[int, ...] = (5, 0)
    tuned: Tuned = TUNED
    warm: WarmStart = field(
        default_factory=lambda: WarmStart(
            policy_data=Demonstrations(
                count=12_000, random_rate=0.12, forget_rate=TUNED.forget_rate, inadmissible_share=0.3
            ),
            judge_data=Demonstrations(
                count=TUNED.judged[0], random_rate=0.2, forget_rate=0.45, inadmissible_share=0.2,
                flip_rate=TUNED.judged[1],
            ),
            judge=SupervisedSettings(learning_rate=2e-3, batch_rows=32, steps=300),
        )
    )  # fmt: skip

    def pool(self) -> tuple[Kind, ...]:
        """Return the kinds of tasks, trained on and held out."""
        return self.tasks

    def warm_start(self, seed: int) -> DemoSettings:
        """Demonstrations of games of all sizes but the largest; the judge's labels say whether the shortest plan got shorter than ever."""
        return DemoSettings(
            seed=seed, generate=SHOWN, options=dict(self.options), warm_start=self.warm
        )

    def short(self) -> Table1Settings:
        """As little as shows that everything runs."""
        few = tuple(
            replace(k, train=min(k.train, 8), heldout=min(k.heldout, 4)) for k in self.tasks
        )
        return replace(
            self, steps=2, groups=4, rollouts=2, late_evals=(0,), warm=QUICK, tasks=few
        )  # fmt: skip

    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the run's configuration: what all arms share, then what the arm has."""
        document, tuned, has = self.shared_document(seed, models), self.tuned, arm.config
        document["env_adapter"]["max_steps"] = self.horizon
        document["trainer"]["policy"]["learning_rate"] = tuned.policy_rate
        document["trainer"]["reward"] |= {"learning_rate": tuned.judge_rate, "max_rows": 0}
        document["algorithm"]["overrides"] = {
            **tuned.algorithm,
            **(tuned.votes if has["votes"] else tuned.outcome),
            **(tuned.target if has["trained"] else {}),
            "train_reward_model": has["trained"],
        }
        if has["adapted"]:
            document["adaptation"] |= {"controller": "llm_rewrite", **tuned.adaptation}
        for section, options in has["sections"].items():
            document[section] |= options
        if document["reward"].get("kind") == "log_ratio":
            document["models"]["reward"]["path"] = models["policy"]  # the reference
        return document


_FULL = Table1Settings()
STUDY = Study(
    name="table1",
    arms=ARMS,
    seeds=SEEDS,
    full=_FULL,
    quick=_FULL.short(),
    compared=Comparison(
        name="table1",
        title="Outcome only, step scores, a trained reward model, adapted tasks: the paper's order on two cores",
        known="what each part of the loop added here, in the order of the paper's Table 1",
        arms=ARMS,
        main=MAIN,
        planned=PLANNED,
        order=ORDER,
        pairs=tuple(BASELINES.items()),
        tuned=TUNING_SEEDS,
        measures={
            "sampled/id": "ID, sampled",
            "greedy/id": "ID, greedy",
            "sampled/ood": "OOD, sampled",
            "greedy/ood": "OOD, greedy",
        },
    ),
    further={name: SEEDS[:3] for name in ARMS if name not in MAIN},
)
