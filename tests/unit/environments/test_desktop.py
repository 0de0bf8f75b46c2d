"""The desktop: real windows and a real shell in a sandbox, honest ends, and files that are looked at with care."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.desktop.family import FAMILY
from environments.desktop.session import COOKIE, PROCESSES, Desktop, bounded
from environments.desktop.tasks import MAX_FILE, SORTS, exists_in, names_in, read_file, size_of
from environments.gui import png
from environments.gui.actions import Action
from tests.unit.environments.tasks import task_of
from tests.unit.environments.test_gui_processes import expect_gone
from triforge.environments.registry import expect_installed
from triforge.errors import ConfigError, EnvError, InputError
from triforge.rollout.protocols import StepResult
from triforge.sandbox import jail
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params

SETTLE_S = 60.0  # a loaded machine answers late; what is waited for ends the wait
TERSE: Params = {"observe": "files", "actions": "command", "settle_s": SETTLE_S, "verify_s": 30.0}


def absent() -> str:
    try:
        expect_installed("desktop", FAMILY.about)
    except ConfigError as error:
        return error.detail
    return ""


needs_a_screen = pytest.mark.skipif(bool(absent()), reason=absent() or "installed")
pytestmark = pytest.mark.timeout(300)

CREATE: dict[str, Any] = {
    "id": "create-1",
    "instruction": "Create an empty file called new.txt in your home folder.",
    "config": [{"type": "write_file", "parameters": {"path": "old.txt", "content": "old\n"}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "exists", "path": "new.txt"},
        "expected": {"type": "rule", "rules": {"expected": "yes"}},
    },
    "horizon": 4,
    "solution": ["touch new.txt"],
}


async def play(params: dict[str, Any], responses: list[str], **options: Any) -> list[StepResult]:
    environment = FAMILY.make({**TERSE, **options})
    try:
        await environment.reset(task_of(FAMILY, params), seed=0)
        return [await environment.step(response) for response in responses]
    finally:
        await environment.close()


# ---- one desktop, looked at from all sides ----


@pytest.fixture(scope="module")
def desktop() -> Iterator[Desktop]:
    def prepare(home: Path) -> None:
        (home / "a.txt").write_text("a\n")

    running = Desktop(640, 480, prepare, settle_s=SETTLE_S)
    yield running
    running.stop()


def run(desktop: Desktop, line: str) -> None:
    desktop.act(Action("type", text=f"{line}\n"))


@needs_a_screen
def test_a_line_that_is_typed_runs_and_is_seen(desktop: Desktop) -> None:
    before = desktop.screenshot()
    run(desktop, "echo $((6 * 7)) > sum.txt; cat sum.txt")
    assert read_file(desktop.home, "sum.txt") == "42\n"
    after = desktop.screenshot()
    assert png.size(before) == png.size(after) == (640, 480)
    assert before != after
    assert desktop.windows() == ["Terminal"]


@needs_a_screen
def test_the_shell_reaches_neither_network_nor_system_nor_other_processes(desktop: Desktop) -> None:
    run(desktop, "(ls /sys /root /work /srv; cat /etc/shadow) > seen.txt 2>/dev/null; true")
    run(
        desktop,
        "touch /usr/x /etc/x /home/x 2>/dev/null; ls /usr/x /etc/x /home/x >> seen.txt 2>/dev/null",
    )
    run(
        desktop,
        "(echo > /dev/tcp/127.0.0.1/22) 2> refused.txt && echo reached >> seen.txt; echo $DISPLAY >> seen.txt",
    )
    run(desktop, "grep -c : /proc/net/dev > net.txt; ls -d /proc/[0-9]* | wc -l > count.txt")
    run(desktop, "for i in 1 2; do kill -9 -1; done 2>/dev/null")
    assert read_file(desktop.home, "seen.txt") == "\n"
    assert "/dev/tcp/127.0.0.1/22: " in (read_file(desktop.home, "refused.txt") or "")
    assert read_file(desktop.home, "net.txt") == "1\n"  # the loopback of its own
    assert int(read_file(desktop.home, "count.txt") or "99") <= 5
    assert desktop.alive


@needs_a_screen
def test_mouse_and_keys_arrive(desktop: Desktop) -> None:
    for action in (
        Action("mouse_move", at=(0, 0)), Action("left_click", at=(300, 300)), Action("right_click", at=(300, 300)),
        Action("double_click", at=(300, 300)), Action("left_click_drag", at=(400, 300)), Action("scroll", amount=-120),
        Action("key", keys=("ctrl", "u")), Action("wait", seconds=0.0),
    ):  # fmt: skip
        desktop.act(action)
    desktop.act(Action("type", text="echo key > key.txt"))
    desktop.act(Action("key", keys=("enter",)))
    assert read_file(desktop.home, "key.txt") == "key\n"
    assert desktop.windows() == ["Terminal"], "no menu, no second window"


@needs_a_screen
def test_stopping_leaves_no_process_no_folder_and_a_free_display() -> None:
    running = Desktop(320, 240, lambda _: None, settle_s=0.0)
    run(running, "mkdir locked; touch locked/x; chmod 000 locked; sleep 600 &")
    running.stop()
    expect_gone(str(running.folder))
    with pytest.raises(EnvError):
        running.act(Action("key", keys=("a",)))


# ---- episodes ----


@needs_a_screen
async def test_the_family_keeps_the_contract() -> None:
    wanted: Params = {"sorts": ["rename", "setting"], "horizon": 4, "spare": 1}
    checked = await check_environment(
        FAMILY, options=TERSE, generator_options=wanted, count=1, max_steps=5, deadline_s=120.0
    )
    require(checked)


@needs_a_screen
async def test_pixels_and_calls_play_an_episode_too() -> None:
    options: Params = {"settle_s": SETTLE_S, "verify_s": 30.0, "width": 400, "height": 300}
    task = task_of(FAMILY, CREATE)
    gold = FAMILY.gold(task, options)
    assert gold is not None
    environment = FAMILY.make(options)
    try:
        reset = await environment.reset(task, seed=0)
        results = [await environment.step(response) for response in gold]
    finally:
        await environment.close()
    assert [png.size(image) for image in reset.observation.images] == [(400, 300)]
    assert [(r.done, r.success) for r in results] == [(False, False), (True, True)]


@needs_a_screen
async def test_giving_up_or_claiming_too_early_is_a_failure() -> None:
    given_up = await play(CREATE, ["run touch new.txt", "fail"])
    assert (given_up[-1].done, given_up[-1].success) == (True, False)
    claimed = await play(CREATE, ["done"], verify_s=0.0)
    assert (claimed[-1].done, claimed[-1].success, claimed[-1].label) == (True, False, -1)


TWO: dict[str, Any] = {
    **CREATE,
    "horizon": 2,
    "evaluator": {
        "func": ["exact_match", "exact_match"],
        "result": [{"type": "exists", "path": name} for name in ("new.txt", "old.txt")],
        "expected": [{"type": "rule", "rules": {"expected": text}} for text in ("yes", "no")],
    },
    "solution": ["touch new.txt", "rm old.txt"],
}


@needs_a_screen
async def test_a_task_begins_inside_its_solution_or_a_recorded_success() -> None:
    task = task_of(FAMILY, TWO)
    clicks = ["left_click (300, 300)", 'type "rm old.txt"', "key enter", 'type "touch new.txt\\n"']
    known = FAMILY.with_success(task, [*clicks, "terminate success"])
    for parent, count, last in ((task, 1, "run rm old.txt"), (known, 3, "run touch new.txt")):
        start = f"after {count} action{'s' * (count > 1)}"
        draft = FAMILY.apply_rewrite(parent, {"variant": "present", "hint": "no", "start": start})
        assert all(check.passed for check in FAMILY.check_rewrite(parent, draft))
        inside = task_of(FAMILY, draft.params)
        assert (inside.instruction, inside.kind) == (task.instruction, task.kind)
        environment = FAMILY.make(TERSE)
        try:
            reset = await environment.reset(inside, seed=0)
            results = [await environment.step(response) for response in (last, "done")]
        finally:
            await environment.close()
        assert [result.success for result in results] == [False, True]
        _, before, *files = reset.observation.text.splitlines()
        assert before.startswith("played before: ")
        assert files == ["files:", *(["new.txt", "old.txt"] if parent is task else ["(none)"])]
        rest = ["run rm old.txt", "done"] if parent is task else None
        assert FAMILY.gold(inside, TERSE) == rest


@needs_a_screen
async def test_a_success_after_which_the_task_is_solved_is_no_start() -> None:
    params = {**TWO, "recorded": ['type "touch new.txt; rm old.txt\\n"', "wait 0"]}
    parent = task_of(FAMILY, params)
    answer = {"variant": "present", "hint": "no", "start": "after 1 action"}
    draft = FAMILY.apply_rewrite(parent, answer)
    failed = [check for check in FAMILY.check_rewrite(parent, draft) if not check.passed]
    assert [check.name for check in failed] == ["not_satisfied_at_reset"]
    with pytest.raises(EnvError, match=r"action 1 played before.* solved") as caught:
        await play(draft.params, [])
    assert not caught.value.retryable


@needs_a_screen
async def test_a_full_disk_is_a_failure() -> None:
    line = "run head -c 2000000 /dev/zero > a; head -c 2000000 /dev/zero > b"
    results = await play(CREATE, [line], disk_limit=3_000_000)
    assert (results[-1].done, results[-1].success) == (True, False)
    assert results[-1].observation.text.startswith("Failed: the disk is full.")


@needs_a_screen
async def test_the_screen_itself_takes_nothing_of_the_disk() -> None:
    large = {"width": 1920, "height": 1080, "disk_limit": 1_000_000}  # its memory is a file of 8 MB
    results = await play(CREATE, ["run touch new.txt", "done"], **large)
    assert (results[-1].done, results[-1].success) == (True, True)


@needs_a_screen
def test_a_screen_asks_for_the_cookie_of_its_episode(desktop: Desktop) -> None:
    for place in (desktop.folder / COOKIE, desktop.folder / "own" / COOKIE):
        assert place.stat().st_mode & 0o777 == 0o600
    environment = {
        "DISPLAY": desktop._display,
        "PATH": os.environ["PATH"],
        "XAUTHORITY": "/nothing",
    }
    stranger = subprocess.run(
        ["xdotool", "getmouselocation"], env=environment, capture_output=True, timeout=60
    )
    assert stranger.returncode != 0
    assert desktop.windows() == ["Terminal"]


BOMB = """
import os, sys
made = 0
for _ in range(400):
    try:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
    except BlockingIOError:
        break
    made += 1
print(made)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start something as another user")
@needs_a_screen
def test_without_root_too_the_shell_has_a_limit_of_processes() -> None:
    words = [*bounded(), jail.find(), "--unshare-all", "--die-with-parent"]
    for place in ("/usr", "/bin", "/lib", "/lib64"):
        words += ["--ro-bind", place, place]
    done = subprocess.run(
        [*words, "--proc", "/proc", "--", str(jail.interpreter()), "-I", "-S", "-c", BOMB],
        user=65534, group=65534, extra_groups=[], stdin=subprocess.PIPE, capture_output=True,
        cwd="/", text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < PROCESSES


# ---- tasks: no screen needed ----


def test_every_sort_of_task_is_generated_open_and_with_a_solution() -> None:
    for sort in SORTS:
        made = FAMILY.generate(count=3, seed=7, options={"sorts": [sort]})
        assert made == FAMILY.generate(count=3, seed=7, options={"sorts": [sort]})
        assert all(FAMILY.validate(params).kind == sort for params in made)
        assert all(params["solution"] for params in made)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"instruction": ""}, "instruction"),
        ({"evaluator": {"func": "no_such"}}, "no_such is not supported, known are exact_match"),
        ({"evaluator": {**CREATE["evaluator"], "result": {"type": "x"}}}, "evaluator: given type 'x'"),
        ({"evaluator": {**CREATE["evaluator"], "func": ["exact_match", "exact_match"],
                        "result": [{"type": "exists", "path": "new.txt"}, {"type": "x"}]}}, "evaluator: given type 'x'"),
        ({"evaluator": {**CREATE["evaluator"], "func": ["exact_match", "infeasible"]}}, "stands alone"),
        ({"config": [{"type": "write_file", "parameters": {"path": "new.txt", "content": ""}}]}, "already"),
        ({"config": [{"type": "write_file", "parameters": {"path": "../x", "content": ""}}]}, "below the home"),
        ({"config": [{"type": "write_file", "parameters": {"path": "x"}}]}, "takes content, path"),
        ({"config": [{"type": "execute", "parameters": {}}]}, "config.0.type"),
        ({"config": [{"type": "make_folder", "parameters": {"path": "old"}},
                     {"type": "write_file", "parameters": {"path": "old", "content": ""}}]}, "cannot be made"),
        ({"played": 1}, "given 1, expected fewer than the 1 actions"),
        ({"recorded": ["click 5", "wait 1"]}, "recorded.0: there is no action 'click'"),
        ({"recorded": ["wait 1", "terminate success"]}, "recorded.1: given 'terminate success', expected no end"),
        ({"recorded": ["wait 0"] * 51}, "recorded"),
        ({"played": 1, "solution": ["x" * 501, "true"]}, "recorded.0: text: 1 to 500"),
    ],
)  # fmt: skip
def test_a_malformed_task_is_refused_with_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**CREATE, **changes})


def test_rewrites_of_a_begun_task_stay_inside_its_success() -> None:
    task = task_of(FAMILY, {**TWO, "solution": [*TWO["solution"], "true"]})
    assert FAMILY.rewrite_menu(task, "harder").combinations == ()
    inside = task_of(FAMILY, {**task.params, "played": 1})
    starts = {
        direction: [answer["start"] for answer in FAMILY.rewrite_menu(inside, direction).combinations]
        for direction in ("harder", "easier")
    }  # fmt: skip
    assert starts == {"harder": ["whole task"], "easier": ["after 2 actions"]}
    assert 0.0 < FAMILY.drift(task.params, inside.params) < 0.75
    drafts = [FAMILY.validate(one.params) for one in (task, inside)]
    assert FAMILY.asks(drafts[0], {}) == FAMILY.asks(drafts[1], {})
    back = {"variant": "present", "hint": "no", "start": "whole task"}
    assert FAMILY.apply_rewrite(inside, back).params == task.params
    for name, changes in {
        "same_task": {"horizon": 99},
        "known_success": {"recorded": ["wait 1", "wait 2", "wait 3"]},
        "differs": {"played": 1},
    }.items():
        lie = FAMILY.validate({**task.params, "played": 2, **changes})
        failed = {check.name for check in FAMILY.check_rewrite(inside, lie) if not check.passed}
        assert name in failed


def test_a_success_without_a_start_inside_of_it_changes_nothing() -> None:
    task = task_of(FAMILY, TWO)
    for actions in (["wait 1", "terminate success"], ["", "wait 1"], ["wait 0"] * 51, ["?", "?"]):
        assert FAMILY.with_success(task, actions) == task
    inside = task_of(FAMILY, {**task.params, "played": 1})
    recorded = FAMILY.with_success(inside, ["wait 1", "wait 2"]).params["recorded"]
    assert recorded == ['type "touch new.txt\\n"', "wait 1", "wait 2"]


def test_a_task_that_cannot_be_done_is_solved_by_giving_it_up() -> None:
    task = task_of(FAMILY, {**CREATE, "evaluator": {"func": "infeasible"}})
    assert (FAMILY.gold(task, TERSE) or ())[-1] == "fail"


def test_links_pipes_and_giants_in_the_home_folder_count_as_absent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (home / "link").symlink_to(secret)
    (home / "way").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    with (home / "giant").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    (home / "plain").write_bytes(b"ok\xff")
    assert [
        read_file(home, name) for name in ("link", "way/secret.txt", "pipe", "giant", "none")
    ] == [None] * 5
    assert read_file(home, "plain") == "ok\ufffd"
    assert exists_in(home, "link")
    assert not exists_in(home, "way/secret.txt")
    assert names_in(home, "way") is None
    assert size_of(home, 10**9) < 10**9
    for path in ("", "/etc/passwd", "../secret.txt", "a/../../x", "."):
        with pytest.raises(InputError, match="below the home folder"):
            read_file(home, path)
