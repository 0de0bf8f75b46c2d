"""RLVE-Gym as an environment family."""

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

GENERATE_S: Final = 10.0
"""Seconds of processor time that one problem may take to make, or one answer to verify."""


class ProblemParams(Strict):
    """A problem: its environment, the seed, and the parameters of the environment's controller for a level."""

    environment: str = Field(min_length=1, max_length=128)
    seed: int = Field(ge=0, lt=2**31)
    parameter: dict[str, JsonValue]


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    environments: list[str] = Field(default_factory=list)
    level: int = Field(default=0, ge=0, le=1000)
    redraw_slow: bool = False


class RlveGymFamily(QuestionFamily):
    """The family `rlve_gym`; README.md explains it."""

    name = "rlve_gym"
    about = About(
        what="problems with verifiers whose difficulty follows the policy",
        tasks="generated, 400 environments",
        licence="MIT (rlve-gym)",
        extra="rlve",
        needs=("Gym", "networkx", "sympy"),
        papers="RLVE",
        steps_per_s=1_500,
    )

    params, generator_options, listed = ProblemParams, GeneratorOptions, "environments"

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(self.name, "environments.rlve_gym.suite", cpu_s=GENERATE_S)

    def ask(self, params: Params) -> Question:
        made = self.worker.call("ask", **self.read(params))
        return Question(text=made["text"], gold=made["gold"], kind=str(params["environment"]))

    def grade(self, params: Params, answer: str) -> Grade:
        result = self.worker.call("grade", answer=answer, **self.read(params))
        return Grade(
            score=result["reward"],
            solved=bool(result["accuracy"]),
            readable=bool(result["format_score"]),
            share=(result["reward"] + 1.0) / 2.0,  # rewards are -1 to 1
        )

    def names(self, wanted: GeneratorOptions) -> Sequence[str]:
        """Return environments with a verifier and a controller of their own."""
        return self.among(wanted.environments, self.worker.call("names"))

    def choose(self, rng: Random, wanted: GeneratorOptions, names: Sequence[str]) -> Params:
        name = rng.choice(names)
        offered = self.worker.call("level", environment=name, level=wanted.level)
        seed = rng.randrange(2**31)
        return {"environment": name, "seed": seed, "parameter": rng.choice(offered)}


FAMILY: Final = RlveGymFamily()
