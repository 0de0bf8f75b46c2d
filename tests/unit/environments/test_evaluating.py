"""Answers that a suite's scorer evaluates: a model's text never runs as a program, and never costs an episode its measure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from environments.reasoning_gym import suite as reasoning_gym
from environments.reasoning_gym.family import ReasoningGymFamily
from environments.rlve_gym import suite as rlve
from environments.rlve_gym.family import RlveGymFamily
from triforge.errors import InputError


@pytest.fixture(scope="module")
def gym() -> Iterator[ReasoningGymFamily]:
    pytest.importorskip(
        "reasoning_gym", reason="pip install -c constraints.txt -e '.[reasoning-gym]'"
    )
    family = ReasoningGymFamily()
    yield family
    family.worker.close()


@pytest.mark.parametrize(
    "dataset",
    [
        "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
        "simple_integration", "spiral_matrix", "string_insertion",
    ],
)  # fmt: skip
def test_an_answer_never_runs_as_a_program(
    gym: ReasoningGymFamily, dataset: str, tmp_path: Path
) -> None:
    params = {"dataset": dataset, "seed": 1}
    made = tmp_path / "made"
    for answer in (
        f"__import__('os').mkdir({str(made)!r})",
        f"S(\"__import__('os').mkdir({str(made)!r})\")",
        f"open({str(made)!r}, 'w')",
        "oracle_answer",
    ):
        assert gym.grade(params, answer).score < 1.0  # type: ignore[arg-type]
        assert not made.exists()


def test_formulas_and_lists_are_still_read(gym: ReasoningGymFamily) -> None:
    for dataset in ("countdown", "polynomial_multiplication", "simple_integration"):
        params = {"dataset": dataset, "seed": 2}
        question = gym.ask(params)  # type: ignore[arg-type]
        assert question.gold is not None
        assert gym.grade(params, f"({question.gold})").solved, dataset  # type: ignore[arg-type]
    spiral = {"dataset": "spiral_matrix", "seed": 1}
    gold = gym.ask(spiral).gold  # type: ignore[arg-type]
    assert gold is not None
    assert gym.grade(spiral, str(gold.split())).score == 0.1  # type: ignore[arg-type]


def test_an_answer_that_a_scorer_stumbles_over_is_wrong_and_not_unmeasured(
    gym: ReasoningGymFamily,
) -> None:
    for dataset, answer in (
        ("prime_factorization", "abc"),
        ("game_of_life", "{}"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "1 + NaNj"),
    ):
        assert gym.grade({"dataset": dataset, "seed": 1}, answer).score == 0.0


def test_a_question_that_any_answer_solves_is_refused(gym: ReasoningGymFamily) -> None:
    with pytest.raises(InputError, match="takes any answer"):
        gym.validate({"dataset": "game_of_life_halting", "seed": 1})


def test_no_scorer_evaluates_an_answer_unseen() -> None:
    for package, calls, known in (
        ("reasoning_gym", r"\b(?:eval|exec)\(answer", reasoning_gym.EVALUATING),
        ("Gym", r"\b(?:sympify|parse_expr|exec)\(answer", rlve.EVALUATING),
    ):
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"{package} is not installed; `make setup` installs it")
        folder = Path(next(iter(spec.submodule_search_locations)))
        found = {
            ".".join(path.relative_to(folder).with_suffix("").parts)
            for path in folder.rglob("*.py")
            if re.search(calls, path.read_text(encoding="utf-8"))
        }
        expected = {name.removeprefix("Gym.") for name in known}
        assert {name.removesuffix(".environment") for name in found} == expected


def test_an_integral_is_no_program_either(tmp_path: Path) -> None:
    pytest.importorskip("Gym", reason="pip install -c constraints.txt -e '.[rlve]'")
    family = RlveGymFamily()
    try:
        (params,) = family.generate(
            count=1, seed=1, options={"environments": ["Integral"], "level": 0}
        )
        made = tmp_path / "made"
        assert not family.grade(params, f"__import__('os').mkdir({str(made)!r})").solved
        assert not made.exists()
        gold = family.ask(params).gold
        assert gold is not None
        assert family.grade(params, f"({gold})").solved
    finally:
        family.worker.close()
