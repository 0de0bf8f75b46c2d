"""Reasoning Gym as an environment family."""

from __future__ import annotations

from random import Random
from typing import Final

from pydantic import Field, JsonValue

from triforge.environments.kit import Strict, parse_model
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

    params, listed = QuestionParams, "datasets"

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(self.name, "environments.reasoning_gym.suite")

    def ask(self, params: Params) -> Question:
        made = self.worker.call("ask", **self.read(params))
        return Question(text=made["text"], gold=made["gold"], kind=str(params["dataset"]))

    def grade(self, params: Params, answer: str) -> Grade:
        score = float(self.worker.call("grade", answer=answer, **self.read(params)))
        return Grade(score=score, solved=score >= 1.0, readable=True)

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "reasoning_gym generate")
        names = self._names(wanted)

        def choose(rng: Random) -> Params:
            return {
                "dataset": rng.choice(names),
                "seed": rng.randrange(2**31),
                "level": wanted.level,
                "config": dict(wanted.config),
            }

        return self.draw(count, seed, choose, redraw_slow=wanted.redraw_slow)

    def kinds(self, options: Params) -> list[str]:
        """Return the datasets with levels."""
        wanted = parse_model(GeneratorOptions, {**options, "level": 0}, "reasoning_gym generate")
        return self._names(wanted)

    def _names(self, wanted: GeneratorOptions) -> list[str]:
        known: dict[str, bool] = self.worker.call("names")
        self.demand_known(wanted.datasets, known, "generate: field datasets")
        if wanted.datasets:
            return wanted.datasets
        return [
            n
            for n, levels in known.items()
            if n not in NOT_ALONE and (levels or wanted.level is None)
        ]


FAMILY: Final = ReasoningGymFamily()
