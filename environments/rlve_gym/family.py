"""RLVE-Gym as an environment family."""

from __future__ import annotations

from random import Random
from typing import Final

from pydantic import Field, JsonValue

from triforge.environments.kit import Strict, parse_model
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

    params, listed = ProblemParams, "environments"

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

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "rlve_gym generate")
        names = self.kinds(options)

        def choose(rng: Random) -> Params:
            name = rng.choice(names)
            offered = self.worker.call("level", environment=name, level=wanted.level)
            return {
                "environment": name,
                "seed": rng.randrange(2**31),
                "parameter": rng.choice(offered),
            }

        return self.draw(count, seed, choose, redraw_slow=wanted.redraw_slow)

    def kinds(self, options: Params) -> list[str]:
        """Return the environments to draw from, each with a verifier and a controller of its own."""
        wanted = parse_model(GeneratorOptions, options, "rlve_gym generate")
        known: list[str] = self.worker.call("names")
        self.demand_known(wanted.environments, known, "generate: field environments")
        return wanted.environments or known


FAMILY: Final = RlveGymFamily()
