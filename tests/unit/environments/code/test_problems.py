"""Generated problems: sentence, line and function of every operation agree."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter

import pytest

from environments.code import family as generated
from environments.code import recipes
from environments.code.operations import WORLDS, Kind, choices, resolved
from environments.code.params import params_of
from environments.code.recipes import PUBLIC, Recipe
from triforge.errors import InputError

KINDS: tuple[Kind, ...] = tuple(WORLDS)
ONE_BY_ONE = [
    Recipe(kind=kind, steps=(step,), final=final, seed=1)
    for kind in KINDS
    for step in choices(WORLDS[kind].steps)
    for final in choices(WORLDS[kind].finals)
]


# A second grammar of the statements, so that a slip in a sentence is found.
KINDS_BY_WORDS: dict[str, Kind] = {
    r"a list of whole numbers\b": "numbers",
    r"some words\b": "words",
    r"a picture\b": "grid",
}
STEPS_BY_WORDS: dict[Kind, dict[str, str]] = {
    "numbers": {
        r"keep only the even": "even", r"keep only the odd": "odd", r"reverse": "reverse", r"sort .* small to large": "sort",
        r"of equal numbers": "unique", r"add (\d+) to": "add", r"drop the multiples of (\d+)": "drop_multiples",
        r".*\bremainder when divided by (\d+), .* 0 and \1 - 1": "remainder", r"move the first number to the end": "shift",
        r".*\bby its square": "square", r".*\bdifferences of neighbours: each number minus the one before": "differences",
        r".*\bthe sum of all numbers up to": "totals",
    },
    "words": {
        r"reverse": "reverse", r"sort the words alphabetically": "sort", r"of equal words": "unique",
        r"write every word backwards": "backwards", r"drop the words with fewer than (\d+)": "drop_short",
        r"sort the words by their length, the shortest first": "by_length", r".*\bswap the first and the last letter": "first_last",
        r"delete the letters a, e, i, o and u": "no_vowels", r"keep the first word, the third": "every_other",
    },
    "grid": {
        r"mirror .*left becomes right": "mirror", r".*upside down": "flip", r"swap lines and columns": "transpose",
        r"replace every # by a \. and every \. by a #": "invert", r"let every # fall down": "fall",
        r"move the last line to the top": "down", r"move the last column to the front": "right",
        r"take away the first line": "crop",
    },
}  # fmt: skip
FINALS_BY_WORDS: dict[Kind, dict[str, str]] = {
    "numbers": {
        r"the sum of the numbers": "sum", r"how many": "count", r"the largest": "largest", r"the numbers separated": "list",
        r"the first number minus the second": "alternating",
    },
    "words": {
        r"how many words": "count", r"how many letters": "letters", r"the words separated": "line",
        r"the first letters": "initials", r"the longest": "longest",
    },
    "grid": {
        r"how many # there are": "count", r"the picture": "picture", r"how many # stand in the first line": "first_line",
        r"how many groups": "regions", r"the size of the largest group": "largest",
    },
}  # fmt: skip


Announced = tuple[Kind, tuple[str, ...], str]


def read_statement(text: str) -> Announced | None:
    """Read a statement back by a grammar of its own; None when it is not one of ours."""
    lines = [" ".join(line.lower().split()) for line in text.splitlines()]
    kinds = [
        kind for pattern, kind in KINDS_BY_WORDS.items() if lines and re.search(pattern, lines[0])
    ]
    finals = [line.removeprefix("then print ") for line in lines if line.startswith("then print ")]
    if len(kinds) != 1 or len(finals) != 1:
        return None
    kind = kinds[0]
    numbered = [found[1] for line in lines if (found := re.fullmatch(r"\d+\. (.*)", line))]
    steps = [matched(STEPS_BY_WORDS[kind], line) for line in numbered]
    final = matched(FINALS_BY_WORDS[kind], finals[0])
    if final is None or not all(steps):
        return None
    return kind, tuple(step for step in steps if step), final


def matched(table: dict[str, str], sentence: str) -> str | None:
    for pattern, name in table.items():
        if found := re.match(pattern, sentence):
            return f"{name}:{found[1]}" if found.groups() else name
    return None


def printed(program: str, text: str) -> str:
    """Return the output of one of our own programs; programs of a model run in the sandbox only."""
    out, before = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(text)
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = before
    return out.getvalue()


def some_recipes(count: int, seed: int = 5) -> list[Recipe]:
    wanted = generated.GeneratorOptions(steps=[1, 4])
    return [generated._draw(wanted, seed, index) for index in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_line_and_function_of_every_operation_agree(kind: Kind) -> None:
    for recipe in ONE_BY_ONE:
        if recipe.kind == kind:
            program = recipes.program(recipe)
            for case in recipes.cases(recipe):
                assert printed(program, case.input).split() == case.output.split(), recipe


def test_every_sentence_is_read_back_as_its_operation() -> None:
    for recipe in ONE_BY_ONE:
        assert read_statement(recipes.question(recipe)) == (recipe.kind, recipe.steps, recipe.final)


def test_operations_that_do_not_exist_are_not_resolved() -> None:
    table = WORLDS["numbers"].steps
    for choice in ("add", "add:3", "add:-1", "even:2", "nothing"):
        with pytest.raises(KeyError):
            resolved(table, choice)
    assert resolved(table, "add:2")[1] == 2


def test_without_any_one_step_a_problem_wants_something_else() -> None:
    for recipe in some_recipes(12):
        right = recipes.answers(recipe)
        for i in range(len(recipe.steps)):
            less = recipe.but(steps=recipe.steps[:i] + recipe.steps[i + 1 :])
            assert recipes.answers(less) != right
    idle = Recipe(
        kind="numbers", steps=("reverse", "sort"), final="sum", seed=1
    )  # the sum does not depend on the order
    assert not recipes.is_sound(idle)


def test_wrong_solutions_fail_a_hidden_test_and_no_two_fail_alike() -> None:
    for recipe in some_recipes(12):
        problem = params_of(recipe)
        hidden = problem.tests[PUBLIC:]
        fingerprints = set()
        for mutant in problem.mutants:
            outputs = [printed(mutant, test.input).split() for test in hidden]
            assert outputs != [test.output.split() for test in hidden]
            fingerprints.add(str(outputs))
        assert 1 <= len(fingerprints) == len(problem.mutants) <= recipes.MUTANTS


def test_a_problem_shows_its_examples_and_hides_its_other_tests() -> None:
    problem = params_of(some_recipes(1)[0])
    text = problem.instruction
    assert text.count("Example input:") == PUBLIC
    assert problem.tests[0].input.strip() in text
    assert problem.reference not in text


def test_the_same_seed_draws_the_same_and_another_one_draws_others() -> None:
    assert some_recipes(6) == some_recipes(6)
    assert some_recipes(6) != some_recipes(6, seed=6)
    assert some_recipes(6)[:3] == some_recipes(3)


def test_kinds_are_drawn_evenly_and_levels_set_the_number_of_steps() -> None:
    drawn = Counter(recipe.kind for recipe in some_recipes(45))
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) >= 6
    for level in (0, 2):
        wanted = generated.GeneratorOptions.model_validate(generated.FAMILY.at_level(level, {}))
        assert len(generated._draw(wanted, 1, 1).steps) == level + 1


def test_options_that_leave_nothing_are_refused() -> None:
    wanted = generated.GeneratorOptions.model_construct(
        kinds=["numbers"], steps=[14, 14]
    )  # of 12 names
    with pytest.raises(InputError, match="ask for fewer steps"):
        generated._draw(wanted, 1, 1)


def test_data_depend_on_the_seed_and_not_on_the_steps() -> None:
    one = Recipe(kind="grid", steps=("mirror",), final="count", seed=9)
    assert recipes.inputs(one) == recipes.inputs(one.but(steps=("flip", "fall")))
    assert recipes.inputs(one) != recipes.inputs(one.model_copy(update={"seed": 49}))
