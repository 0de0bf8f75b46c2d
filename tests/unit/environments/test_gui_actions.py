"""Computer-use calls and short commands: how they are read, and the reasons of malformed ones."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from environments.gui.actions import (
    Action,
    MalformedError,
    call,
    pixels,
    pyautogui_key,
    read_command,
    read_computer_use,
    read_written,
    web_key,
    x_key,
)
from environments.gui.episode import ReadOptions, ScreenEpisode
from triforge.rollout.protocols import Observation, StepResult


@pytest.mark.parametrize(
    ("response", "action"),
    [
        (call("left_click", coordinate=[500, 300]), Action("left_click", at=(500, 300))),
        (call("left_click", coordinate=[500.0, 0]), Action("left_click", at=(500, 0))),
        (call("double_click", ref=7), Action("double_click", ref=7)),
        (call("type", text="née 5 €\n"), Action("type", text="née 5 €\n")),
        (call("type", text="a</tool_call>b"), Action("type", text="a</tool_call>b")),
        (call("key", keys=["Ctrl", "c"]), Action("key", keys=("ctrl", "c"))),
        (call("key", keys="ctrl+shift+Return"), Action("key", keys=("ctrl", "shift", "enter"))),
        (call("key", keys="+"), Action("key", keys=("+",))),
        (call("scroll", pixels=-120), Action("scroll", amount=-120)),
        (call("wait", time=1.5), Action("wait", seconds=1.5)),
        (call("terminate", status="failure"), Action("terminate", success=False)),
        ("<think>" + call("wait", time=1) + "</think>" + call("wait", time=2), Action("wait", seconds=2)),
    ],
    ids=str,
)  # fmt: skip
def test_a_call_is_read(response: str, action: Action) -> None:
    assert read_computer_use(response) == action
    assert read_written(str(action)) == action


@pytest.mark.parametrize(
    "text",
    ["", "click 4", "left_click", "left_click [4] now", "left_click (5, 1000)", "type (1, 2) \"a\"", "type a", "type " + "[" * 9999,
     "type \"\\ud800\"", "wait 1.0", "wait nan", "wait -1", "scroll " + "9" * 9999, "key ctrl+", "key Ctrl", "terminate", "wait 1\n"],
)  # fmt: skip
def test_a_text_that_no_action_writes_is_refused(text: str) -> None:
    with pytest.raises(MalformedError):
        read_written(text)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("", "no_call"),
        ("Action: click the button", "no_call"),
        ("<tool_call>" * 3, "no_call"),
        (call("wait", time=1) * 2, "several_calls"),
        ("<tool_call>{not json}</tool_call>", "bad_json"),
        ("<tool_call>" + "[" * 50_000 + "</tool_call>", "bad_json"),
        ('<tool_call>{"name": "computer_use", "arguments": ' + "9" * 6000 + "}</tool_call>", "bad_json"),
        ('<tool_call>{"name": "computer_use"}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "browser", "arguments": {"action": "wait"}}</tool_call>', "wrong_tool"),
        ("<tool_call>[1]</tool_call>", "wrong_tool"),
        (call("fly"), "unknown_action"),
        ('<tool_call>{"name": "computer_use", "arguments": {"action": ["key"]}}</tool_call>', "unknown_action"),
        (call("left_click"), "missing_argument"),
        (call("type"), "missing_argument"),
        (call("left_click", coordinate=[1000, 0]), "bad_argument"),
        (call("left_click", coordinate=[-1, 0]), "bad_argument"),
        (call("left_click", coordinate=["500", 300]), "bad_argument"),
        (call("left_click", coordinate=[True, 300]), "bad_argument"),
        (call("left_click", coordinate=[0.5, 300]), "bad_argument"),
        (call("left_click", coordinate=[1, 2, 3]), "bad_argument"),
        (call("left_click", ref="4"), "bad_argument"),
        (call("type", text=""), "bad_argument"),
        (call("type", text="a\x00b"), "bad_argument"),
        (call("type", text="x" * 501), "bad_argument"),
        (call("key", keys=["hyper"]), "bad_argument"),
        (call("key", keys=[]), "bad_argument"),
        (call("key", keys=["a"] * 5), "bad_argument"),
        (call("wait", time=float("nan")), "bad_json"),
        (call("type", text="\ud83d"), "bad_json"),
        (call("wait", time=1e9), "bad_argument"),
        (call("terminate", status="done"), "bad_argument"),
    ],
)  # fmt: skip
def test_another_text_is_malformed_for_a_reason(response: str, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_computer_use(response)
    assert (caught.value.reason, bool(str(caught.value))) == (reason, True)


def test_calls_that_never_end_are_read_in_one_pass() -> None:
    with pytest.raises(MalformedError) as caught:  # quadratic in its length it would take minutes
        read_computer_use("<tool_call>" * 300_000)
    assert caught.value.reason == "no_call"


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("click 4", Action("left_click", ref=4)),
        (" click 500 300\n", Action("left_click", at=(500, 300))),
        ("type 5 Jerald  Smith", Action("type", ref=5, text="Jerald  Smith")),
        ("press ctrl+a", Action("key", keys=("ctrl", "a"))),
        ("scroll -200", Action("scroll", amount=-200)),
        ("done", Action("terminate", success=True)),
        ("fail", Action("terminate", success=False)),
    ],
    ids=str,
)
def test_a_command_is_read(response: str, action: Action) -> None:
    assert read_command(response) == action


@pytest.mark.parametrize(
    "response", ["", "click", "click four", "type 5", "click 4 4 4", "press hyper"]
)
def test_another_text_is_no_command(response: str) -> None:
    with pytest.raises(MalformedError):
        read_command(response)


@given(st.text())
def test_no_text_makes_the_readers_raise_anything_else(text: str) -> None:
    for read, response in (
        (read_command, text),
        (read_computer_use, text),
        (read_computer_use, f"<tool_call>{text}</tool_call>"),
    ):
        with contextlib.suppress(MalformedError):
            read(response)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["key", "type", "left_click", "scroll", "wait", "terminate"]) | _JSON,
        **dict.fromkeys(("coordinate", "ref", "text", "keys", "pixels", "time", "status"), _JSON),
    },
)  # fmt: skip


@given(_ARGUMENTS)
def test_no_arguments_make_the_reader_raise_anything_else(arguments: dict[str, object]) -> None:
    body = json.dumps({"name": "computer_use", "arguments": arguments})
    with contextlib.suppress(MalformedError):
        read_computer_use(f"<tool_call>{body}</tool_call>")


@pytest.mark.parametrize("size", [160, 210, 768, 1000])
def test_every_pixel_can_be_pointed_at(size: int) -> None:
    pointed = {pixels((at, at), size, size)[0] for at in range(1000)}
    assert pointed == {*range(size)}
    assert pixels((0, 999), size, size) == (0, size - 1)


def test_a_key_has_a_name_everywhere() -> None:
    assert (web_key("enter"), x_key("enter"), pyautogui_key("enter")) == (
        "\ue007",
        "Return",
        "enter",
    )
    assert (web_key("a"), x_key("a"), pyautogui_key("a")) == ("a", "U0061", "a")


def test_an_action_is_one_line() -> None:
    assert str(Action("left_click", at=(5, 6))) == "left_click (5, 6)"
    assert str(Action("type", ref=4, text="a\nb")) == 'type [4] "a\\nb"'
    assert str(Action("terminate", success=True)) == "terminate success"


class Blank(ScreenEpisode):
    """An episode at a screen where no action does anything."""

    def _act(self, action: Action) -> StepResult:
        return self._after("", str(action), valid=True)

    def _observe(self, remark: str) -> Observation:
        return Observation(text=remark)


def blank(family: str, horizon: int, malformed_limit: int) -> Blank:
    options = ReadOptions(actions="command", malformed_limit=malformed_limit)
    return Blank(family, horizon, options, "")


def test_malformed_actions_are_counted_by_family_and_reason() -> None:
    labels = {"family": "counted", "reason": "unknown_action"}
    episode = blank("counted", 9, 0)
    assert [episode.play(one).action_valid for one in ("x", "wait", "y")] == [False, True, False]
    assert REGISTRY.get_sample_value("triforge_env_adapter_malformed_actions_total", labels) == 2.0


def test_steps_and_malformed_actions_are_counted_to_their_limits() -> None:
    strict = blank("test", 4, 2)
    assert not strict.play("x").done
    assert not strict.play("wait").done
    result = strict.play("x")
    assert (result.done, result.observation.text) == (True, "Failed: 2 malformed actions.")
    patient = blank("test", 2, 0)
    assert not patient.play("x").done
    assert patient.play("x").observation.text == "Failed: all 2 steps are used up."
