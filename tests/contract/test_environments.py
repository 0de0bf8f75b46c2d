"""Every shipped environment family keeps the contract, and the suite that says so can tell when one does not."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from environments.household.episode import Episode
from environments.household.family import HouseholdFamily
from environments.household.params import PlayOptions
from triforge.cli.main import command_line
from triforge.environments import registry
from triforge.environments.kit import OneEpisode, expect_announced
from triforge.errors import ConfigError, EnvError, InputError
from triforge.rollout.protocols import Environment, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.testing.check_environment import check_environment, not_applicable, require
from triforge.testing.fakes import offer_family
from triforge.types import CheckResult, Direction, Params, Task

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = sorted(PROJECT["entry-points"][registry.GROUP])
OPTIONS: list[Params] = [
    {},
    {"wording": "terse"},
    {"wording": "alfworld", "answer": "boxed"},
    {"wording": "alfworld", "answer": "last_line", "guide": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_the_household_keeps_the_contract(options: Params) -> None:
    require(await check_environment(registry.family("household"), options=options, count=4))


async def test_the_household_keeps_the_contract_in_large_rooms_with_hints() -> None:
    options: Params = {"receptacles": [10, 14], "per_kind": 3, "hint": 1.0, "closed": 0.5}
    require(
        await check_environment(registry.family("household"), generator_options=options, seed=5)
    )


def test_every_family_has_a_page_of_its_own() -> None:
    for name in OURS:
        page = (ROOT / "environments" / name / "README.md").read_text()
        assert page.startswith(f"# {name}\n")


def test_the_families_in_the_tree_are_those_that_are_found_by_their_entry_points() -> None:
    assert set(OURS) <= set(registry.known()), "run: pip install --no-deps -e ."
    folders = {page.parent.name for page in (ROOT / "environments").glob("*/README.md")}
    assert folders == set(OURS)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'kitchen' is unknown, known are: .*household"):
        registry.family("kitchen")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("no.such.module:FAMILY", r"cannot be loaded.*pip install 'broken\d-package'"),
        ("triforge.environments.registry:nothing", "cannot be loaded"),
        ("triforge.environments.registry:GROUP", "not an EnvironmentFamily"),
    ],
)
def test_an_entry_that_points_at_nothing_says_so(
    target: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken{len(target) % 10}"
    offer_family(tmp_path, name, target)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        registry.family(name)


def test_require_names_every_broken_promise() -> None:
    results = (
        CheckResult(name="first", passed=True),
        CheckResult(name="second", passed=False, detail="two"),
        CheckResult(name="third", passed=False, detail="three"),
    )
    with pytest.raises(EnvError, match="second: two; third: three"):
        require(results)


# ---- families that break one promise each -----------------------------------------------------------------------


class _Rough(OneEpisode):
    """An episode that may be used again and again."""

    async def reset(self, task: Task, *, seed: int) -> Reset:
        self._used = False
        return await super().reset(task, seed=seed)


class _Slow(OneEpisode):
    async def step(self, response: str) -> StepResult:
        time.sleep(0.05)  # noqa: ASYNC251  the very fault to be found
        return await super().step(response)


class _Clamping(OneEpisode):
    """Takes any response for the first admissible command, as the published code does."""

    async def step(self, response: str) -> StepResult:
        assert isinstance(self._episode, Episode)
        commands = self._episode.commands()
        return await super().step(response if response in commands else commands[0])


class _Endless(OneEpisode):
    async def step(self, response: str) -> StepResult:
        return replace(await super().step(response), done=False)


class _Generous(OneEpisode):
    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        return replace(result, success=result.done)


class _Silent(OneEpisode):
    async def reset(self, task: Task, *, seed: int) -> Reset:
        reset = await super().reset(task, seed=seed)
        return replace(reset, observation=replace(reset.observation, text="a room"))


class _Drifting(OneEpisode):
    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        text = f"{result.observation.text} {time.perf_counter_ns()}"
        return replace(result, observation=replace(result.observation, text=text))


def _playing(environment: type[OneEpisode]) -> HouseholdFamily:
    class Family(HouseholdFamily):
        def make(self, options: Params) -> Environment:
            super().make(options)

            def begin(task: Task, seed: int) -> Episode:
                given = self.read(task.params)
                expect_announced(self.name, task, self.instruction(given))
                return Episode(given, PlayOptions(wording="terse"), task.instruction)

            return environment(self.name, begin)

    return Family()


class _Forgetful(HouseholdFamily):
    """Changes the goal and keeps the sentence, and checks nothing: the published defect."""

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        return replace(super().apply_rewrite(task, answer), instruction=task.instruction)


class _Trusting(HouseholdFamily):
    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        return [CheckResult(name="fine", passed=True)]


class _Lucky(HouseholdFamily):
    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        return super().generate(count=count, seed=time.perf_counter_ns(), options=options)


class _Lax(HouseholdFamily):
    def validate(self, params: Params) -> TaskDraft:
        known = ("receptacles", "objects", "goal", "horizon", "hint")
        return super().validate({name: params[name] for name in known})


class _Boastful(HouseholdFamily):
    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        menu = super().rewrite_menu(task, direction)
        return replace(menu, fields=dict.fromkeys(menu.fields, ("nothing",)))


class _Credulous(HouseholdFamily):
    """Open answers, of which it takes any."""

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        schema = '{"type": "object", "properties": {"goal": {"type": "string"}}}'
        return RewriteMenu(description="", json_schema=schema)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        return self.validate(task.params)


class _Wrong(HouseholdFamily):
    def gold(self, task: Task, options: Params) -> list[str]:
        return [*(super().gold(task, options) or ())][:-1]


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (lambda: _playing(_Rough), "calls_out_of_order_raise"),
        (lambda: _playing(_Slow), "gold_answers_succeed"),
        (lambda: _playing(_Clamping), "invalid_actions_are_reported"),
        (lambda: _playing(_Endless), "limits_end_in_failure"),
        (lambda: _playing(_Generous), "limits_end_in_failure"),
        (lambda: _playing(_Silent), "first_observation_announces_the_task"),
        (lambda: _playing(_Drifting), "same_seed_same_episode"),
        (_Forgetful, "rewrites_are_true"),
        (_Trusting, "false_rewrites_are_caught"),
        (_Boastful, "rewrites_are_true"),
        (_Credulous, "open_rewrites_are_held"),
        (_Lucky, "generate_is_deterministic"),
        (_Lax, "unknown_fields_are_refused"),
        (_Wrong, "gold_answers_succeed"),
    ],
)
async def test_a_family_that_breaks_a_promise_is_caught(
    make: Callable[[], HouseholdFamily], broken: str
) -> None:
    results = await check_environment(
        make(), options={"wording": "terse"}, count=2, max_steps=60, block_limit_s=0.04
    )
    assert broken in {result.name for result in results if not result.passed}


async def test_a_check_without_anything_to_look_at_says_so() -> None:
    results = await check_environment(registry.family("sokoban"), count=1)
    require(results)
    skipped = {result.name: result.detail for result in not_applicable(results)}
    closed = {"rewrites_are_true", "false_rewrites_are_caught"}
    assert set(skipped) == {*closed, "open_rewrites_are_held", "distances_are_sound"}
    assert "`rewrite_menu` lists no combinations" in skipped["rewrites_are_true"]
    unsolved = await check_environment(_Unsolved(), options={"wording": "terse"}, count=1)
    names = [result.name for result in not_applicable(unsolved)]
    assert names == ["gold_answers_succeed", "open_rewrites_are_held"]


class _Unsolved(HouseholdFamily):
    def gold(self, task: Task, options: Params) -> None:
        return None


def test_the_command_line_prints_what_does_not_apply() -> None:
    printed = CliRunner().invoke(command_line(["env"]), ["env", "check", "sokoban", "--count", "1"])
    assert printed.exit_code == 0
    assert "-      rewrites_are_true: does not apply" in printed.output
    assert "15 checks, 0 broken, 4 do not apply" in printed.output


def test_the_command_line_checks_tasks_of_ones_own(tmp_path: Path) -> None:
    family = registry.family("household")
    (params,) = family.generate(count=1, seed=5, options={})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(params)}\n\n{json.dumps({'params': params})}\n")
    printed = CliRunner().invoke(
        command_line(["env"]), ["env", "check", "household", "--tasks", str(rows)]
    )
    assert printed.exit_code == 0, printed.output
    assert "generate_is_deterministic: does not apply: the tasks were given" in printed.output
