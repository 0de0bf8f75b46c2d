"""Reasoning Gym as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from pydantic import Field, JsonValue

from triforge.environments.kit import Strict
from triforge.environments.questions import Grade, Question, QuestionFamily
from triforge.environments.registry import About
from triforge.environments.worker import Worker
from triforge.types import Params

NOT_ALONE: Final = frozenset({"composite"})
"""Datasets that are made of others and useless without them."""

NO_ORACLE: Final = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""Datasets that verify any right answer and have no gold answers."""


class QuestionParams(Strict):
    """One entry of a dataset: `level` None takes the dataset's defaults, `config` changes single settings of it."""

    dataset: str = Field(min_length=1, max_length=64)
    seed: int = Field(ge=0, lt=2**31)
    level: int | None = Field(default=None, ge=0, le=1000)
    config: dict[str, JsonValue] = Field(default_factory=dict)


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    datasets: list[str] = Field(default_factory=list)
    level: int | None = Field(default=None, ge=0, le=1000)
    config: dict[str, JsonValue] = Field(default_factory=dict)
    redraw_slow: bool = False


class ReasoningGymFamily(QuestionFamily):
    """The family `reasoning_gym`; README.md explains it."""

    name = "reasoning_gym"
    about = About(
        what="questions with verifiable answers, most with difficulty levels",
        tasks="generated, 106 datasets",
        licence="Apache-2.0 (reasoning-gym)",
        extra="reasoning-gym",
        needs=("reasoning_gym",),
        papers="",
        steps_per_s=1_300,
    )

    params, generator_options, listed = QuestionParams, GeneratorOptions, "datasets"

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(self.name, "environments.reasoning_gym.suite")

    def ask(self, params: Params) -> Question:
        made = self.worker.call("ask", **self.read(params))
        return Question(text=made["text"], gold=made["gold"], kind=str(params["dataset"]))

    def grade(self, params: Params, answer: str) -> Grade:
        score = float(self.worker.call("grade", answer=answer, **self.read(params)))
        return Grade(score=score, solved=score >= 1.0, readable=True)

    def names(self, wanted: GeneratorOptions) -> Sequence[str]:
        known: dict[str, bool] = self.worker.call("names")
        if wanted.datasets:
            return self.among(wanted.datasets, known)
        usual = (name for name in known if name not in NOT_ALONE)
        return [name for name in usual if known[name] or wanted.level is None]

    def choose(self, rng: Random, wanted: GeneratorOptions, names: Sequence[str]) -> Params:
        dataset, seed = rng.choice(names), rng.randrange(2**31)
        return {"dataset": dataset, "seed": seed, "level": wanted.level, "config": wanted.config}

    def kinds(self, options: Params) -> Sequence[str]:
        """Return the datasets with levels."""
        return super().kinds({**options, "level": 0})


FAMILY: Final = ReasoningGymFamily()
