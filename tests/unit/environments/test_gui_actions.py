"""Computer-use calls and short commands: what is read, what is malformed and why, and that nothing ever raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from environments.gui.actions import (
    Action,
    Malformed,
    call,
    grid,
    pixels,
    pyautogui_key,
    read_command,
    read_computer_use,
    web_key,
    x_key,
)
from environments.gui.episode import Turns


@pytest.mark.parametrize(
    ("response", "action"),
    [
        (call("left_click", coordinate=[500, 300]), Action("left_click", at=(500, 300))),
        (call("left_click", coordinate=[500.0, 0]), Action("left_click", at=(500, 0))),
        (call("double_click", ref=7), Action("double_click", ref=7)),
        (call("type", text="née 5 €\n"), Action("type", text="née 5 €\n")),
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
        (call("wait", time=float("nan")), "bad_argument"),
        (call("wait", time=1e9), "bad_argument"),
        (call("terminate", status="done"), "bad_argument"),
    ],
)  # fmt: skip
def test_what_is_no_action_is_malformed_for_a_reason(response: str, reason: str) -> None:
    read = read_computer_use(response)
    assert isinstance(read, Malformed)
    assert (read.reason, bool(read.sentence)) == (reason, True)


def test_calls_that_never_end_are_read_in_one_pass() -> None:
    read = read_computer_use(
        "<tool_call>" * 300_000
    )  # quadratic in its length it would take minutes
    assert isinstance(read, Malformed)
    assert read.reason == "no_call"


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
def test_what_is_no_command_is_malformed(response: str) -> None:
    assert isinstance(read_command(response), Malformed)


@given(st.text())
def test_no_text_makes_the_readers_raise(text: str) -> None:
    read_command(text)
    read_computer_use(text)
    read_computer_use(f"<tool_call>{text}</tool_call>")


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
def test_no_arguments_make_the_reader_raise(arguments: dict[str, object]) -> None:
    body = json.dumps({"name": "computer_use", "arguments": arguments})
    read_computer_use(f"<tool_call>{body}</tool_call>")


@pytest.mark.parametrize("size", [160, 210, 768, 1000])
def test_every_pixel_can_be_pointed_at(size: int) -> None:
    for pixel in range(size):
        assert pixels(grid(pixel, pixel, size, size), size, size) == (pixel, pixel)
    assert pixels((0, 999), size, size) == (0, size - 1)


def test_a_key_has_a_name_everywhere() -> None:
    assert (web_key("enter"), x_key("enter"), pyautogui_key("enter")) == (
        "\ue007",
        "Return",
        "enter",
    )
    assert (web_key("a"), x_key("a"), pyautogui_key("a")) == ("a", "U0061", "a")


def test_an_action_is_one_line_for_people() -> None:
    assert str(Action("left_click", at=(5, 6))) == "left_click (5, 6)"
    assert str(Action("type", ref=4, text="a\nb")) == 'type [4] "a\\nb"'
    assert str(Action("terminate", success=True)) == "terminate success"


def test_malformed_actions_are_counted_by_family_and_reason() -> None:
    labels = {"family": "counted", "reason": "bad_json"}
    turns = Turns("counted", horizon=9, malformed_limit=0)
    for reason in ("bad_json", "", "bad_json"):
        turns.take(reason)
    assert (turns.taken, turns.malformed) == (3, 2)
    assert REGISTRY.get_sample_value("triforge_env_adapter_malformed_actions_total", labels) == 2.0


def test_steps_and_malformed_actions_are_counted_to_their_limits() -> None:
    turns = Turns("test", horizon=3, malformed_limit=2)
    turns.take("no_call")
    turns.take()
    assert turns.over == ""
    turns.take("bad_json")
    assert turns.over == "Failed: 2 malformed actions."
    patient = Turns("test", horizon=2, malformed_limit=0)
    patient.take("no_call")
    assert patient.over == ""
    patient.take("no_call")
    assert patient.over == "Failed: all 2 steps are used up."
