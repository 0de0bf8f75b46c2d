"""Episodes, rewriting and the contract, with programs that really run; skipped where bubblewrap is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from environments.code.execution import fenced, passed, program_in, prove, score
from environments.code.family import CodeFamily
from environments.code.params import ProgramParams
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError, SandboxError
from triforge.rollout.protocols import ProgramFamily, StepResult, TaskDraft
from triforge.sandbox.cases import Case, run_cases
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import Limits
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params, ProgramLimits

ADD_ONE = "print(int(input()) + 1)"
ROW: Params = {
    "question": "Add one.",
    "tests": [{"input": f"{n}\n", "output": f"{n + 1}\n"} for n in (1, 5, 20)],
    "public": 1,
    "reference": ADD_ONE,
}


@pytest.fixture(scope="module")
def family(sandbox: Sandbox) -> CodeFamily:
    return CodeFamily(sandbox)


async def play(
    family: CodeFamily, params: Params, responses: Sequence[str], options: Params | None = None
) -> list[StepResult]:
    task = await asyncio.to_thread(task_of, family, params)
    environment = family.make(options or {})
    await environment.reset(task, seed=0)
    results = [await environment.step(response) for response in responses]
    await environment.close()
    return results


async def test_a_right_program_wins_and_a_wrong_one_loses(family: CodeFamily) -> None:
    (won,) = await play(family, ROW, [f"First I think.\n{fenced(ADD_ONE)}\nDone."])
    assert (won.done, won.success, won.action_valid, won.action.strip()) == (
        True,
        True,
        True,
        ADD_ONE,
    )
    (lost,) = await play(family, ROW, [fenced("print(2)")])  # right on the test that is shown
    assert (lost.done, lost.success, lost.action_valid) == (True, False, True)
    assert lost.observation.text == "A test is not passed: wrong output."
    (none,) = await play(family, ROW, [ADD_ONE])
    assert (none.done, none.success, none.action_valid) == (True, False, False)
    assert (won.share, lost.share, none.share) == (1.0, 1 / 3, 0.0)


async def test_without_every_test_the_first_that_fails_is_the_last(family: CodeFamily) -> None:
    (lost,) = await play(family, ROW, [fenced("print(2)")], {"every_test": False})
    assert (lost.success, lost.share) == (False, 0.0)
    (won,) = await play(family, ROW, [fenced(ADD_ONE)], {"every_test": False})
    assert (won.success, won.share) == (True, 1.0)


def test_a_task_has_the_limits_of_its_programs(family: CodeFamily) -> None:
    assert isinstance(family, ProgramFamily)
    limits = family.program_limits(task_of(family, {**ROW, "time_limit_s": 2.0}))
    assert limits == ProgramLimits(cpu_s=2.0, wall_s=8.0, memory_bytes=256 * 2**20)


@pytest.mark.parametrize(
    ("program", "trouble"),
    [
        ("1 / 0", "the program failed"),
        ("while True: pass", "too slow"),
        ("x = 'x' * 10**9", "the program failed"),
        ("while True: print(2)", "too much output"),
    ],
)
async def test_a_program_that_breaks_a_limit_gets_the_name_of_the_limit(
    family: CodeFamily, program: str, trouble: str
) -> None:
    limit = 0.5 if trouble == "too slow" else 10.0
    (result,) = await play(family, {**ROW, "time_limit_s": limit}, [fenced(program)])
    assert (result.success, result.observation.text) == (False, f"A test is not passed: {trouble}.")


async def test_a_program_has_one_budget_for_all_tests_counted_in_their_order(
    sandbox: Sandbox,
) -> None:
    spin = "n = int(input())\nwhile n > 2: pass\nprint(n + 1)"
    tests = [{"input": f"{n}\n", "output": f"{n + 1}\n"} for n in (1, 2, 3, 4, 5, 6)]
    task = ProgramParams.model_validate({"question": "x", "tests": tests, "time_limit_s": 0.5})
    found = await score(sandbox, task, spin, every=True, total_s=0.8)
    assert (found.passed, found.tests, found.trouble) == (2, 6, "too slow")
    verdicts = await run_cases(sandbox, spin, task.cases(), task.limits(), total_s=0.8)
    assert [v.passed for v in verdicts[:2]] == [True, True]
    assert len(verdicts) in (3, 4)  # one endless run or two use it up; the others are never run


def test_a_reference_solution_that_is_too_slow_is_refused_with_both_limits(
    family: CodeFamily,
) -> None:
    slow: Params = {**ROW, "reference": "while True: pass", "time_limit_s": 0.2}
    with pytest.raises(
        InputError, match=r"too slow \(time_limit_s is 0\.2 s a test, and all tests.*120 s"
    ):
        family.validate(slow)


async def test_with_turns_left_what_fails_in_public_is_answered(family: CodeFamily) -> None:
    turns: Params = {"turns": 3}
    first, second = await play(family, ROW, [fenced("print(7)"), fenced(ADD_ONE)], turns)
    assert (first.done, first.success) == (False, False)
    assert "Expected output:\n2\nYour output:\n7" in first.observation.text
    assert (second.done, second.success) == (True, True)
    failing = await play(family, ROW, [fenced("1 / 0"), "no program", fenced("print(2)")], turns)
    assert [result.done for result in failing] == [False, False, True]
    assert "ZeroDivisionError" in failing[0].observation.text
    assert "20" not in failing[2].observation.text  # nothing of a hidden test is shown


async def test_a_program_cannot_tell_which_tests_are_hidden(family: CodeFamily) -> None:
    peek = "import os, sys\nprint(os.listdir('/tmp'), len(sys.argv), file=sys.stderr)\nprint(2)"
    first = (await play(family, ROW, [fenced(peek)], {"turns": 2}))[0]
    assert first.success is False
    assert "A test is not passed" in first.observation.text


def test_the_last_block_of_python_is_the_program() -> None:
    assert program_in("```python\na\n```\ntext\n```py\nb\n```") == "b\n"
    assert program_in("```\nplain\n```") == "plain\n"
    assert program_in("```json\n{}\n```") is None
    assert program_in("```python\nnever closed") is None
    assert program_in("  ```Python title\n  x\n  ```") == "  x\n"
    assert program_in("") is None
    assert program_in(fenced("print('```')")) == "print('```')\n"


@pytest.mark.parametrize("noise", ["```a", "``` ", " "])
def test_a_fence_that_never_ends_is_read_in_one_pass(noise: str) -> None:
    assert program_in(noise + noise[-1] * 400_000) is None  # minutes if quadratic in its length


async def test_a_sandbox_that_does_not_start_leaves_the_episode_unmeasured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = CodeFamily(Sandbox())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await play(family, {**ROW, "reference": ""}, [fenced(ADD_ONE)])
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await asyncio.to_thread(family.validate, ROW)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        await asyncio.to_thread(family.generate, count=1, seed=0, options={})


def test_a_row_whose_reference_solution_fails_is_refused_with_the_test(family: CodeFamily) -> None:
    with pytest.raises(InputError, match=r"does not pass test 2 of 3: wrong output"):
        family.validate({**ROW, "reference": "print(2)"})


# ---- generated problems -----------------------------------------------------------------------------------------


def test_reference_and_mutants_of_generated_problems_are_run(
    family: CodeFamily, sandbox: Sandbox
) -> None:
    for params in family.generate(count=3, seed=2, options={"steps": [1, 4]}):
        problem = ProgramParams.model_validate(params)
        programs = [problem.reference, *problem.mutants]
        table = asyncio.run(passed(sandbox, problem, programs))
        assert [all(row) for row in table] == [True] + [False] * len(problem.mutants)
        alone = asyncio.run(score(sandbox, problem, problem.reference))
        assert alone.solved


def test_a_problem_that_does_not_hold_is_found_by_running_it(
    family: CodeFamily, sandbox: Sandbox
) -> None:
    good = ProgramParams.model_validate(family.generate(count=1, seed=2, options={})[0])
    bad = {
        "the reference solution passes 0 of 8": good.model_copy(update={"reference": "1 / 0"}),
        "a wrong solution passes": good.model_copy(update={"mutants": [good.reference]}),
        "no wrong solution": good.model_copy(update={"mutants": []}),
    }
    for sentence, problem in bad.items():
        trouble, _ = asyncio.run(prove(sandbox, problem))
        assert sentence in trouble
    assert asyncio.run(prove(sandbox, good)) == ("", [])


@pytest.mark.timeout(300)  # some two hundred runs
async def test_the_family_keeps_the_contract(family: CodeFamily) -> None:
    require(await check_environment(family, generator_options={"steps": [2, 2]}, count=1))


def test_rewrites_go_one_step_in_the_direction_that_was_asked(family: CodeFamily) -> None:
    params = family.generate(
        count=1, seed=4, options={"steps": [2, 2], "kinds": ["words"], "proved": False}
    )[0]
    task = task_of(family, params)
    for direction, lengths in (("harder", {2, 3}), ("easier", {1, 2})):
        menu = family.rewrite_menu(task, direction)  # type: ignore[arg-type]
        assert menu.combinations
        for answer in menu.combinations:
            draft = family.apply_rewrite(task, answer)
            assert len(answer["steps"].split(", ")) in lengths
            assert 0 < family.drift(task.params, draft.params) < 1
    assert family.drift(task.params, task.params) == 0.0
    own = task_of(family, {**ROW, "reference": ""})
    assert family.rewrite_menu(own, "harder").combinations == ()
    assert family.drift(own.params, task.params) == 1.0
    with pytest.raises(InputError, match="expected exactly question, tests, reference"):
        family.apply_rewrite(own, {"steps": "sort", "final": "count"})


def test_a_part_of_a_problem_is_proved_and_grows_back_to_the_whole(family: CodeFamily) -> None:
    params = family.generate(count=1, seed=7, options={"steps": [4, 4], "proved": False})[0]
    task = task_of(family, params)
    easier = family.rewrite_menu(task, "easier").combinations
    single = [answer for answer in easier if ", " not in answer["steps"]]
    assert single
    draft = family.apply_rewrite(task, single[-1])
    assert all(result.passed for result in family.check_rewrite(task, draft))
    for _ in range(4):
        part = task_of(family, draft.params)
        offered = family.rewrite_menu(part, "harder").combinations
        assert offered
        draft = family.apply_rewrite(part, offered[0])
        assert set(single[-1]["steps"].split(", ")) < set(offered[0]["steps"].split(", "))
        if draft.params == task.params:
            break
    assert draft.params == task.params


def test_a_recipe_that_is_no_part_of_its_whole_is_refused(family: CodeFamily) -> None:
    params = family.generate(count=1, seed=7, options={"steps": [3, 3], "proved": False})[0]
    recipe: Any = params["recipe"]
    assert "whole" not in recipe
    with pytest.raises(InputError, match="are no part of"):
        family.validate({**params, "recipe": {**recipe, "whole": recipe["steps"][:2]}})


def test_a_rewrite_that_rewards_something_else_than_it_announces_is_caught(
    family: CodeFamily,
) -> None:
    params = family.generate(count=1, seed=4, options={"steps": [2, 2], "proved": False})[0]
    task = task_of(family, params)
    draft = family.apply_rewrite(task, family.rewrite_menu(task, "harder").combinations[0])
    assert all(result.passed for result in family.check_rewrite(task, draft))
    lies = {
        "instruction_agrees": TaskDraft(params=draft.params, instruction=task.instruction),
        "differs": TaskDraft(params=task.params, instruction=task.instruction),
        "well_formed": TaskDraft(
            params={**draft.params, "public": 0}, instruction=draft.instruction
        ),
    }
    for name, lie in lies.items():
        failed = {r.name for r in family.check_rewrite(task, lie) if not r.passed}
        assert name in failed


# ---- cases ------------------------------------------------------------------------------------------------------


async def test_cases_are_judged_word_by_word_and_each_alone(sandbox: Sandbox) -> None:
    cases = [Case("1", " 2\n\n"), Case("2", "4"), Case("x", "1"), Case("3", "4")]
    verdicts = await run_cases(sandbox, ADD_ONE, cases, Limits())
    assert [v.reason for v in verdicts] == ["right", "wrong", "error", "right"]
    assert [v.passed for v in verdicts] == [True, False, False, True]
    few = await run_cases(sandbox, ADD_ONE, cases, Limits(), stop_at_first=True)
    assert [v.reason for v in few] == ["right", "wrong"]
