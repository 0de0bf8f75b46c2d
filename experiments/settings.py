"""Settings that experiments share, and the parts of an arm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from demo.settings import SHOWN, Demonstrations, DemoSettings, SupervisedSettings, WarmStart
from demo.warm_start import tiny_models
from environments.household.careless import SMALL

EASY = SMALL | {"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]}
HARD = SMALL | {
    "receptacles": [7, 8],
    "distractors": [2, 4],
    "goals": ["heat", "cool", "clean", "two"],
}

Asks = Literal["sensible", "progress", "best", "difference"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A planted judge.

    Attributes:
        asks: what a vote says of an action. `sensible`: +1 if the scripted expert, knowing what was seen, might do it.
            `progress`: +1 if the shortest plan, by a planner that knows everything, became shorter. `best`: +1 if it became shorter
            than ever in the episode. All others -1. `difference`: by how much it became shorter, -1, 0 or +1.
        right: the chance that a vote is the truth. Otherwise it is the opposite, and of 0 a sign by lot.
    """

    asks: Asks = "progress"
    right: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting that is compared.

    Attributes:
        title: for people.
        config: what it changes in the run's document.
        rewrites: whether a language model rewrites tasks.
        planted: the judge; None asks the reward model.
    """

    title: str
    config: Mapping[str, Any] = field(default_factory=dict)
    rewrites: bool = False
    planted: Planted | None = None


_DEMO = {"lam": 0.15, "std_floor": 1.0, "train_on_pairs": "parent"}
_ADAPT = {"max_pending": 4, "max_rollouts": 64, "pairs_on_top": False}  # equal episodes in all arms


@dataclass(frozen=True)
class Kind:
    """Tasks of one kind: how many are trained on and how many held out. Those held out are measured under its name, if it has one."""

    name: str
    options: Mapping[str, Any]
    train: int = 0
    heldout: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings(ABC):
    """How much is played.

    Attributes:
        steps: training steps.
        groups: task slots a step, pairs of a proposal included.
        rollouts: K.
        kinds: options of the kinds of tasks in the pool.
        train_tasks: tasks of each kind.
        heldout_tasks: held-out tasks of each kind.
        late_evals: training steps, counted from the last, after which there is an evaluation.
        warm: the supervised first phase.
    """

    options: ClassVar[Mapping[str, Any]] = {"wording": "terse"}
    """Of the household's play."""

    steps: int = 20
    groups: int = 16
    rollouts: int = 8
    kinds: tuple[Mapping[str, Any], ...] = (EASY, HARD)
    train_tasks: int = 32
    heldout_tasks: int = 64
    late_evals: tuple[int, ...] = (3, 0)
    warm: WarmStart = field(default_factory=WarmStart)

    def pool(self) -> tuple[Kind, ...]:
        """Return what the pool consists of."""
        return tuple(
            Kind("", options, self.train_tasks, self.heldout_tasks) for options in self.kinds
        )

    def warm_start(self, seed: int) -> DemoSettings:
        """Return the warm start of a seed: careless demonstrations of services of all sizes."""
        return DemoSettings(seed=seed, generate=SHOWN, warm_start=self.warm)

    def models(self, seed: int, tell: Callable[[str], None]) -> tuple[Path, Path]:
        """Return the folders of policy and judge that a seed starts from; they are made if they are not in the cache."""
        return tiny_models(self.warm_start(seed), tell)

    @abstractmethod
    def document(self, arm: Arm, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the configuration of an arm's run, as `triforge.config.parse` reads it."""

    def shared_document(self, seed: int, models: Mapping[str, str]) -> dict[str, Any]:
        """Return the part of the configuration that all arms share."""
        return {
            "run": {"name": "experiment", "seed": seed, "steps": self.steps,
                    "groups_per_step": self.groups},
            "models": {
                "policy": {"path": models["policy"], "max_new_tokens": 4},
                "reward": {"path": models["reward"], "max_new_tokens": 1, "temperature": 0.5},
                "rewriter": {"path": models["rewriter"], "max_new_tokens": 48, "temperature": 0.8},
            },
            "env_adapter": {"rollouts": self.rollouts, "max_steps": 14, "options": dict(self.options)},
            "adaptation": {"controller": "none", "candidates": 2, "diagnosis_tokens": 24, "notes": 1,
                           **_ADAPT},
            "reward": {"votes": 3, "prompt": "terse"},
            "trainer": {
                "policy": {"learning_rate": 5e-4, "token_budget": 8192, "max_tokens": 1024},
                "reward": {"learning_rate": 2e-4, "token_budget": 8192, "max_tokens": 1024},
            },
            "algorithm": {"preset": "rlanything", "overrides": dict(_DEMO)},
        }  # fmt: skip


QUICK = WarmStart(
    hidden=16, layers=1, heads=2,
    policy_data=Demonstrations(count=24, random_rate=0.1, forget_rate=0.6, inadmissible_share=0.3),
    judge_data=Demonstrations(count=24, random_rate=0.2, forget_rate=0.4, inadmissible_share=0.2, flip_rate=0.05),
    policy=SupervisedSettings(learning_rate=3e-3, batch_rows=8, steps=3),
    judge=SupervisedSettings(learning_rate=3e-3, batch_rows=8, steps=3),
)  # fmt: skip
