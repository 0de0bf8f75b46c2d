"""MiniWoB pages in one real browser: both action formats, both views, honest ends, and no browser left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.gui import png
from environments.gui.actions import call
from environments.miniwob.browser import Browser, Browsers
from environments.miniwob.family import MiniWobFamily
from tests.unit.environments.tasks import task_of
from tests.unit.environments.test_gui_processes import expect_gone
from triforge.environments.registry import About, expect_installed
from triforge.errors import ConfigError, EnvError, InputError
from triforge.rollout.adapting import drift
from triforge.rollout.protocols import StepResult, TaskDraft
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params, Task


def absent() -> str:
    try:
        expect_installed("miniwob", MiniWobFamily.about)
    except ConfigError as error:
        return error.detail
    return ""


pytestmark = [
    pytest.mark.skipif(bool(absent()), reason=absent() or "installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def browsers() -> Iterator[Browsers]:
    """At most one browser, for all tests here."""
    shared = Browsers()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def family(browsers: Browsers) -> MiniWobFamily:
    return MiniWobFamily(browsers)


ONE: Params = {"browsers": 1}


async def play(
    family: MiniWobFamily, task: Task, options: Params, responses: list[str]
) -> list[StepResult]:
    environment = family.make({**ONE, **options})
    try:
        await environment.reset(task, seed=0)
        return [await environment.step(response) for response in responses]
    finally:
        await environment.close()


async def test_the_family_keeps_the_contract(family: MiniWobFamily) -> None:
    wanted: Params = {"tasks": ["click-test-2"], "horizon": 4}
    require(
        await check_environment(family, options=ONE, generator_options=wanted, count=1, max_steps=5)
    )


def test_a_rewrite_is_another_page_of_its_row_with_the_sentence_of_that_page(
    family: MiniWobFamily,
) -> None:
    task = task_of(family, {"task": "click-tab", "seed": 11})
    assert family.rewrite_menu(task, "easier").combinations == ()
    (answer, *_) = family.rewrite_menu(task, "harder").combinations
    assert answer == {"task": "click-tab-2-easy", "start": "whole task"}
    draft = family.apply_rewrite(task, answer)
    assert draft.instruction != task.instruction
    assert all(check.passed for check in family.check_rewrite(task, draft))
    assert 0.0 < drift(family, task.params, draft.params) < 0.75
    for name, params, text in (
        ("page_says", {**draft.params, "utterance": task.instruction}, task.instruction),
        ("same_row", {**draft.params, "horizon": 99}, draft.instruction),
        ("differs", task.params, task.instruction),
        ("well_formed", {"task": "no-page"}, ""),
    ):
        lie = TaskDraft(params=params, instruction=text)
        failed = {check.name for check in family.check_rewrite(task, lie) if not check.passed}
        assert name in failed
    for bad in ({}, {"task": "no-page", "start": "whole task"}, {**answer, "start": "soon"}):
        with pytest.raises(InputError, match="miniwob"):
            family.apply_rewrite(task, bad)


SOLUTIONS = {  # of seed 11
    "click-test": ["click 4"],
    "click-test-2": ["click 4"],
    "click-button": ["click 5"],
    "click-button-sequence": ["click 4", "click 5"],
    "click-checkboxes": ["click 6", "click 11"],
    "click-dialog": ["click 7"],
    "click-link": ["click 6"],
    "click-option": ["click 8", "click 11"],
    "click-tab": ["click 10"],
    "enter-password": ["type 7 kBB", "type 10 kBB", "click 11"],
    "focus-text": ["click 4"],
    "focus-text-2": ["click 5"],
    "login-user": ["type 7 bernardine", "type 10 BB2", "click 11"],
}


@pytest.mark.parametrize(("name", "solution"), SOLUTIONS.items())
async def test_the_right_commands_solve_the_page(
    family: MiniWobFamily, name: str, solution: list[str]
) -> None:
    task = task_of(family, {"task": name, "seed": 11})
    results = await play(family, task, {}, solution)
    assert [result.success for result in results] == [False] * (len(solution) - 1) + [True]
    assert results[-1].label == 1


async def test_a_task_begins_inside_a_recorded_success_of_it(family: MiniWobFamily) -> None:
    task = task_of(family, {"task": "login-user", "seed": 11, "horizon": 3})
    played = await play(family, task, {}, SOLUTIONS["login-user"])
    known = family.with_success(task, ["", *(result.action for result in played)])
    assert (known.instruction, family.rewrite_menu(known, "harder").combinations[0]["start"]) == (
        task.instruction, "whole task",
    )  # fmt: skip
    answers = [{"task": "login-user", "start": f"after {n}"} for n in ("1 action", "2 actions")]
    assert list(family.rewrite_menu(known, "easier").combinations) == answers
    draft = family.apply_rewrite(known, answers[1])
    assert (draft.instruction, draft.kind) == (task.instruction, task.kind)
    assert {check.name: check.passed for check in family.check_rewrite(known, draft)} == dict.fromkeys(
        ("differs", "same_task", "known_success", "page_says", "not_satisfied_at_reset"), True
    )  # fmt: skip
    inside = task_of(family, {**draft.params, "horizon": 1})  # what was played costs no step
    environment = family.make(ONE)
    try:
        first = (await environment.reset(inside, seed=0)).observation
        (result,) = [await environment.step(SOLUTIONS["login-user"][2])]
    finally:
        await environment.close()
    assert result.success
    shown, typed = first.text.splitlines()[1:], 'type [10] "BB2"'
    assert shown[0] == f'played before: type [7] "bernardine"; {typed}'
    assert '[10] password "BB2" focused' in shown

    inside = task_of(family, draft.params)
    assert list(family.rewrite_menu(inside, "easier").combinations) == []
    starts = [answer["start"] for answer in family.rewrite_menu(inside, "harder").combinations]
    assert starts == ["after 1 action", "whole task"]
    whole = family.apply_rewrite(inside, {"task": "login-user", "start": "whole task"})
    assert whole.params == task.params
    assert 0.0 < drift(family, task.params, draft.params) < 0.75


@pytest.mark.parametrize(
    ("recorded", "sentence"),
    [
        (["left_click [999]", "wait 1"], "action 1 .* there is no element 999"),
        (["left_click [4]", "wait 1"], "action 1 .* the page is over after it"),
    ],
)
async def test_a_success_that_does_not_lead_into_the_page_is_refused(
    family: MiniWobFamily, recorded: list[str], sentence: str
) -> None:
    task = task_of(family, {"task": "click-test-2", "seed": 11})
    known = family.with_success(task, recorded)
    draft = family.apply_rewrite(known, {"task": "click-test-2", "start": "after 1 action"})
    (failed,) = family.check_rewrite(known, draft)
    assert (failed.name, failed.passed) == ("not_satisfied_at_reset", False)
    with pytest.raises(EnvError, match=sentence) as caught:
        await play(family, task_of(family, draft.params), {}, [])
    assert not caught.value.retryable


async def test_pixels_and_screenshots_solve_a_page_too(family: MiniWobFamily) -> None:
    options: Params = {"actions": "computer_use", "observe": "screenshot", "scale": 2}
    task = task_of(family, {"task": "enter-text", "seed": 5})
    gold = [
        call("left_click", coordinate=[521, 301]),
        call("type", text="Teodoro"),
        call("left_click", coordinate=[434, 516]),
    ]
    environment = family.make({**ONE, **options})
    try:
        reset = await environment.reset(task, seed=0)
        assert "computer_use" in reset.system
        assert reset.observation.text == f"task: {task.instruction}"
        results = [await environment.step(response) for response in gold]
    finally:
        await environment.close()
    assert results[-1].success
    screens = [reset.observation.images, *(result.observation.images for result in results)]
    assert [png.size(image) for (image,) in screens] == [(320, 420)] * 4
    assert screens[1] != screens[2], "the text that was typed is seen"


async def test_the_same_problem_is_shown_pixel_for_pixel(family: MiniWobFamily) -> None:
    task = task_of(family, {"task": "login-user", "seed": 5})
    shown = []
    for _ in range(2):
        environment = family.make({**ONE, "observe": "both"})
        try:
            shown.append((await environment.reset(task, seed=0)).observation)
        finally:
            await environment.close()
    assert shown[0] == shown[1]


async def test_an_element_that_is_not_there_is_a_malformed_action(family: MiniWobFamily) -> None:
    task = task_of(family, {"task": "click-test-2", "seed": 5})
    (result,) = await play(family, task, {"malformed_limit": 1}, ["click 999"])
    assert (result.done, result.success, result.action_valid) == (True, False, False)


@pytest.mark.parametrize("status", ["success", "failure"])
async def test_saying_done_on_a_page_that_is_not_done_is_a_failure(
    family: MiniWobFamily, status: str
) -> None:
    task = task_of(family, {"task": "click-test-2", "seed": 5})
    responses = [call("terminate", status=status)]
    (result,) = await play(family, task, {"actions": "computer_use"}, responses)
    assert (result.done, result.success, result.action_valid) == (True, False, True)


async def test_a_partial_raw_reward_is_a_failure_unless_the_run_says_otherwise(
    family: MiniWobFamily,
) -> None:
    task = task_of(family, {"task": "click-checkboxes", "seed": 11})
    missing_one = SOLUTIONS["click-checkboxes"][1:]
    strict = await play(family, task, {}, missing_one)
    assert (strict[-1].done, strict[-1].success) == (True, False)
    lenient = await play(family, task, {"success_at": 0.01}, missing_one)
    assert (lenient[-1].done, lenient[-1].success) == (True, True)


def test_an_unknown_page_is_refused_with_the_known_ones(family: MiniWobFamily) -> None:
    with pytest.raises(InputError, match=r"no task click-tset; there are: .*click-test"):
        family.validate({"task": "click-tset", "seed": 1})


def test_an_episode_that_was_given_up_while_it_waited_gets_no_browser(browsers: Browsers) -> None:
    lease = browsers.lease(1)
    lease.end(sound=True)
    with pytest.raises(EnvError, match="closed while it waited"):
        lease.begin()


def test_a_browser_that_is_not_sound_is_ended_with_all_its_processes() -> None:
    started: list[Browser] = []

    def start() -> Browser:
        started.append(Browser())
        return started[0]

    browsers = Browsers(start)
    lease = browsers.lease(1)
    folder = lease.begin().folder
    lease.end(sound=False)
    expect_gone(folder)
    with pytest.raises(EnvError, match="does not answer"):
        started[0].navigate("about:blank")


def test_a_missing_browser_is_one_sentence_with_the_command_that_mends_it() -> None:
    given = MiniWobFamily.about
    gone = About(
        what=given.what, tasks=given.tasks, licence=given.licence,
        programs=(("no-such-browser", "chromium"), ("no-such-driver", "chromium-driver")),
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        expect_installed("miniwob", gone)
    assert caught.value.detail == (
        "environment 'miniwob' needs no-such-browser, no-such-driver, not found on PATH: "
        "apt-get install --no-install-recommends chromium chromium-driver"
    )
