"""OSWorld's task files on a fake control server: setup, actions, verifiers, honest ends, and machines given back."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.gui import png
from environments.gui.actions import Action, call
from environments.osworld.family import FAMILY
from environments.osworld.machine import Machine, lease_of, program
from environments.osworld.options import PlayOptions
from tests.unit.environments.fake_control_server import FakeControlServer
from tests.unit.environments.tasks import task_of
from triforge.errors import ConfigError, EnvError, InputError
from triforge.rollout.protocols import Reset, StepResult
from triforge.types import Params

DONE, GAVE_UP = call("terminate", status="success"), call("terminate", status="failure")
WAIT = call("wait", time=0)
TASK: dict[str, Any] = {
    "id": "94d95f96-9699-4208-98ba-3c3119edf9c2",
    "snapshot": "os",
    "instruction": "I want to install Spotify on my current system.",
    "source": "https://example.org",
    "config": [
        {"type": "execute", "parameters": {"command": ["mkdir", "-p", "/home/user/x"], "shell": False}},
        {"type": "launch", "parameters": {"command": "gnome-terminal"}},
        {"type": "upload_file", "parameters": {"path": "/home/user/a.txt", "content": "old\n"}},
        {"type": "sleep", "parameters": {"seconds": 0}},
    ],
    "trajectory": "trajectories/",
    "related_apps": ["os"],
    "evaluator": {
        "func": "check_include_exclude",
        "result": {"type": "vm_command_line", "command": "which spotify", "shell": True},
        "expected": {"type": "rule", "rules": {"include": ["spotify"], "exclude": ["not found"]}},
        "postconfig": [{"type": "open", "parameters": {"path": "/home/user/a.txt"}}],
    },
    "proxy": False,
}  # fmt: skip
INFEASIBLE = {**TASK, "evaluator": {"func": "infeasible"}}


@pytest.fixture
def machine() -> Iterator[FakeControlServer]:
    server = FakeControlServer({"which spotify": ("/usr/bin/spotify\n", "")})
    yield server
    server.close()


def options(machine: FakeControlServer, **more: Any) -> Params:
    return {"machines": [machine.url], "pause_s": 0.0, "start_s": 20.0, **more}


async def play(
    machine: FakeControlServer, params: dict[str, Any], responses: list[str], **more: Any
) -> tuple[Reset, list[StepResult]]:
    environment = FAMILY.make(options(machine, **more))
    try:
        reset = await environment.reset(task_of(FAMILY, params), seed=0)
        return reset, [await environment.step(response) for response in responses]
    finally:
        await environment.close()


async def test_a_task_file_is_set_up_played_and_verified(machine: FakeControlServer) -> None:
    click = call("left_click", coordinate=[999, 500])
    reset, results = await play(machine, TASK, [click, call("type", text='a"\n'), DONE])
    assert "computer_use" in reset.system
    assert TASK["instruction"] in reset.observation.text
    assert [png.size(image) for image in reset.observation.images] == [(200, 100)]
    assert machine.files == {"/home/user/a.txt": b"old\n"}
    assert machine.launched == ["gnome-terminal", ["xdg-open", "/home/user/a.txt"]]
    assert machine.moved == [
        "pyautogui.click(199, 50, button='left')",
        "pyautogui.write('a\"\\n', interval=0.02)",
    ]
    assert [(r.done, r.success) for r in results] == [(False, False), (False, False), (True, True)]
    assert reset.observation.images != results[0].observation.images, "the screen after it"


async def test_a_step_limit_is_never_a_success(machine: FakeControlServer) -> None:
    for task in (TASK, INFEASIBLE):
        _, results = await play(machine, {**task, "horizon": 2}, [WAIT, WAIT])
        assert [(r.done, r.success) for r in results] == [(False, False), (True, False)]


async def test_malformed_actions_are_never_a_success(machine: FakeControlServer) -> None:
    for task in (TASK, INFEASIBLE):
        _, results = await play(machine, task, ["click it", "9" * 5000], malformed_limit=2)
        assert [(r.done, r.success, r.action_valid) for r in results] == [
            (False, False, False),
            (True, False, False),
        ]


async def test_an_infeasible_task_is_solved_by_saying_so_and_by_nothing_else(
    machine: FakeControlServer,
) -> None:
    _, results = await play(machine, INFEASIBLE, [GAVE_UP])
    assert results[-1].success
    _, claimed = await play(machine, INFEASIBLE, [DONE])
    assert not claimed[-1].success
    _, given_up = await play(machine, TASK, [GAVE_UP])
    assert (given_up[-1].done, given_up[-1].success) == (True, False)


@pytest.mark.parametrize(
    ("func", "result", "expected", "success"),
    [
        ("compare_text_file", {"type": "vm_file", "path": "/f"}, {"type": "cloud_file", "path": "URL/file"}, None),
        ("exact_match", {"type": "vm_file", "path": "/f"}, {"type": "rule", "rules": {"expected": "one\ntwo"}}, True),
        ("file_contains", {"type": "vm_file", "path": "/f"}, {"type": "rule", "rules": {"expected": ["two"]}}, True),
        ("file_contains", {"type": "vm_file", "path": "/f"}, {"type": "rule", "rules": {"expected": []}}, False),
        ("check_include_exclude", {"type": "vm_file", "path": "/f"}, {"type": "rule", "rules": {"include": "one"}}, False),
        ("exact_match", {"type": "vm_file", "path": "/none"}, {"type": "rule", "rules": {"expected": None}}, False),
        ("exact_match", {"type": "vm_command_error", "command": ["x"]}, {"type": "rule", "rules": {"expected": "bad"}}, True),
    ],
)  # fmt: skip
async def test_files_and_output_are_verified(
    machine: FakeControlServer, func: str, result: Any, expected: Any, success: bool | None
) -> None:
    machine.files["/f"] = b"one\ntwo\n"
    machine.answers["x"] = ("", "bad\n")
    task = {**TASK, "evaluator": {"func": func, "result": result, "expected": expected}}
    if success is None:  # the address does not exist, which is not a failure of the agent
        with pytest.raises(EnvError, match="URL/file"):
            await play(machine, task, [DONE])
        return
    _, results = await play(machine, task, [DONE])
    assert results[-1].success is success


async def test_two_functions_are_joined_by_and_or_or(machine: FakeControlServer) -> None:
    machine.files["/f"] = b"one\n"
    yes = {"type": "rule", "rules": {"expected": "one"}}
    no = {"type": "rule", "rules": {"expected": "two"}}
    for conj, success in (("and", False), ("or", True)):
        evaluator = {
            "func": ["exact_match", "exact_match"], "conj": conj, "expected": [yes, no],
            "result": [{"type": "vm_file", "path": "/f"}] * 2,
        }  # fmt: skip
        _, results = await play(machine, {**TASK, "evaluator": evaluator}, [DONE])
        assert results[-1].success is success


async def test_a_machine_that_breaks_is_no_failure_of_the_agent(machine: FakeControlServer) -> None:
    environment = FAMILY.make(options(machine))
    await environment.reset(task_of(FAMILY, TASK), seed=0)
    machine.broken = True
    with pytest.raises(EnvError, match="answers 500") as caught:
        await environment.step(WAIT)
    await environment.close()
    assert caught.value.retryable


async def test_an_agent_that_cannot_move_has_not_failed(machine: FakeControlServer) -> None:
    environment = FAMILY.make(options(machine))
    await environment.reset(task_of(FAMILY, TASK), seed=0)
    machine.paralysed = True
    with pytest.raises(EnvError, match="pyautogui failed"):
        await environment.step(call("key", keys="a"))
    await environment.close()


def test_what_an_agent_writes_is_read_up_to_a_limit(machine: FakeControlServer) -> None:
    near = Machine(machine.url, call_s=20.0, largest=1000)
    machine.files = {"/small": b"x" * 1000, "/large": b"x" * 1001}
    machine.answers["flood"] = ("x" * 1001, "")
    assert near.read("/small") == b"x" * 1000
    assert near.read("/large") is None
    assert near.read("/none") is None
    with pytest.raises(EnvError, match="answers more than 1000 bytes"):
        near.run("flood", in_shell=True)
    near.close()


async def test_a_machine_that_never_answers_is_an_error(machine: FakeControlServer) -> None:
    machine.broken = True
    with pytest.raises(EnvError, match=r"is not ready within 0.1 s"):
        await play(machine, TASK, [], start_s=0.1)
    machine.broken = False
    await play(machine, TASK, [])  # and was given back


async def test_two_episodes_take_turns_on_one_machine(machine: FakeControlServer) -> None:
    first = FAMILY.make(options(machine))
    second = FAMILY.make(options(machine))
    await first.reset(task_of(FAMILY, TASK), seed=0)
    waiting = asyncio.create_task(second.reset(task_of(FAMILY, TASK), seed=0))
    early, _ = await asyncio.wait({waiting}, timeout=0.5)  # many times what a reset takes
    assert not early
    await first.close()
    await waiting
    await second.close()


def test_an_episode_that_is_closed_while_it_waits_stops_waiting(machine: FakeControlServer) -> None:
    play_options = PlayOptions(machines=[machine.url])
    held, waiting = lease_of(play_options), lease_of(play_options)
    assert held.begin().url == machine.url
    caught: list[Exception] = []

    def begin() -> None:
        try:
            waiting.begin()
        except EnvError as error:
            caught.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    waiting.end(sound=True)
    thread.join(60)
    held.end(sound=True)
    assert [type(error) for error in caught] == [EnvError]


DOCKER = """#!{python}
import sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    {started}
elif sys.argv[1] == "port":
    print({address!r})
"""


def fake_docker(
    folder: Path, patch: pytest.MonkeyPatch, machine: FakeControlServer, started: str
) -> Path:
    """Put a program `docker` first on PATH and return its log; `started` is its reaction to `run`."""
    log, script = folder / "log", folder / "docker"
    address = machine.url.removeprefix("http://")
    text = DOCKER.format(python=sys.executable, log=str(log), address=address, started=started)
    script.write_text(text)
    script.chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


async def test_a_container_is_started_for_an_episode_and_removed_after_it(
    machine: FakeControlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_docker(tmp_path, monkeypatch, machine, 'print("c0ffee")')
    docker: Params = {"image": "osworld-docker", "arguments": ["--device", "/dev/kvm"]}
    environment = FAMILY.make({"docker": docker, "pause_s": 0.0, "start_s": 20.0})
    await environment.reset(task_of(FAMILY, TASK), seed=0)
    result = await environment.step(DONE)
    await environment.close()
    await environment.close()
    assert result.success
    name = log.read_text().split()[4]
    assert name.startswith("triforge-osworld-")
    assert log.read_text().splitlines() == [
        f"run --detach --rm --name {name} --publish 127.0.0.1::5000 --device /dev/kvm osworld-docker",
        f"port {name} 5000/tcp",
        f"rm --force --volumes {name}",
    ]


async def test_a_container_is_removed_when_docker_failed_to_say_that_it_runs(
    machine: FakeControlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_docker(tmp_path, monkeypatch, machine, "sys.exit(125)")
    environment = FAMILY.make({"docker": {"image": "osworld-docker"}})
    with pytest.raises(EnvError, match="docker run failed"):
        await environment.reset(task_of(FAMILY, TASK), seed=0)
    await environment.close()
    name = log.read_text().split()[4]
    assert log.read_text().splitlines()[1:] == [f"rm --force --volumes {name}"]


async def test_missing_docker_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    environment = FAMILY.make({"docker": {"image": "x"}})
    with pytest.raises(ConfigError, match=r"docker is not on PATH: apt-get install docker\.io"):
        await environment.reset(task_of(FAMILY, TASK), seed=0)
    await environment.close()


@pytest.mark.parametrize("given", [{}, {"machines": ["host:5000"]}, {"machines": ["http://a"], "docker": {"image": "x"}}])  # fmt: skip
def test_a_run_without_exactly_one_kind_of_machine_is_refused(given: Params) -> None:
    with pytest.raises(InputError, match="osworld options"):
        FAMILY.make(given)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"no_such_field": 1}, "no_such_field"),
        ({"config": [{"type": "googledrive", "parameters": {}}]}, "field config.0: type: given 'googledrive'"),
        ({"evaluator": {"func": "compare_pptx_files"}}, "compare_pptx_files is not supported"),
        ({"evaluator": {**TASK["evaluator"], "result": {"type": "vm_window_size"}}}, "result: given type 'vm_window_size'"),
        ({"evaluator": {**TASK["evaluator"], "options": {"ignore_case": True}}}, "options of a function"),
        ({"evaluator": {**TASK["evaluator"], "expected": {}}}, "expected: given type None"),
        ({"evaluator": {**TASK["evaluator"], "result": {"type": "vm_file"}}}, "result: vm_file needs 'path'"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_before_anything_is_stored(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**TASK, **changes})


def test_a_validated_task_validates_to_itself() -> None:
    draft = FAMILY.validate(TASK)
    assert FAMILY.validate(draft.params) == draft
    assert (draft.instruction, draft.kind) == (TASK["instruction"], "os")
    with pytest.raises(InputError, match="upload them as the pool's rows"):
        FAMILY.generate(count=1, seed=0, options={})


@pytest.mark.parametrize(
    ("action", "statement"),
    [
        (Action("double_click", at=(0, 0)), "pyautogui.doubleClick(0, 0)"),
        (Action("mouse_move", at=(999, 999)), "pyautogui.moveTo(1919, 1079)"),
        (Action("left_click_drag", at=(0, 999)), "pyautogui.dragTo(0, 1079, duration=0.5, button='left')"),
        (Action("right_click", at=(0, 0)), "pyautogui.click(0, 0, button='right')"),
        (Action("scroll", amount=-3), "pyautogui.scroll(-3)"),
        (Action("scroll", at=(0, 0), amount=3), "pyautogui.scroll(3, x=0, y=0)"),
        (Action("key", keys=("ctrl", "meta", '"')), "pyautogui.hotkey('ctrl', 'win', '\"')"),
        (Action("type", text="'); import os; ('"), "pyautogui.write(\"'); import os; ('\", interval=0.02)"),
    ],
    ids=str,
)  # fmt: skip
def test_an_action_is_one_statement_whose_values_cannot_break_out(
    action: Action, statement: str
) -> None:
    assert program(action, 1920, 1080) == statement
    compile(statement, "statement", "eval")
