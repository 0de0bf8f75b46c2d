"""Answers that call tools, or only seem to, in each format: what they mean here, and why SGLang reads some otherwise.

`python scripts/real_sglang/record_calls.py`, in an environment with SGLang, writes its answers to
`tests/contract/sglang_calls.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

LOOK: Final = {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS: Final = {"look": LOOK, "go": {"type": "object"}}
FRIDGE: Final[tuple[str, dict[str, Any]]] = ("look", {"at": "fridge"})

# Why SGLang differs.
THOUGHTS = (
    "its parsers of calls read thoughts, which its server takes away only with --reasoning-parser"
)
CODE = "calls in code are executed"
CLOSING = "it searches for the end of the call before it parses JSON"
RAW = "it takes no line break inside of a string of JSON"
STRINGS = "arguments as a text, or null, are passed on as they are"
CUT = "it reads a call only with its end"
BEHIND = "JSON with text behind it is a call"
UNKNOWN = "calls of unknown tools are dropped with their text"
JSON = "it takes NaN, infinities, halves of characters and fields that occur twice"
BROKEN = "text that is no call is dropped"
ADDRESS = "it takes an address in the channel commentary only"
MARKER = "a marker without a call is dropped"  # here with the other special tokens


@dataclass(frozen=True)
class Case:
    """One answer: its text and calls as clients get them. `parser` is SGLang's name of the format."""

    parser: str
    answer: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    differs: str = ""
    opened: bool = False  # the prompt ends inside of a thought


def _stays(parser: str, answer: str, differs: str = "") -> Case:
    return Case(parser, answer, answer, (), differs)


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


_CALL = _hermes('{"name": "look", "arguments": {"at": "fridge"}}')
_GO = _hermes('{"name": "go", "arguments": {}}')
_LINE = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
_DRAFT = f"I could {_CALL} but no."

HERMES: Final = {
    "one": Case("qwen25", _CALL, "", (FRIDGE,)),
    "text and one": Case("qwen25", f"Let me see.\n{_CALL}", "Let me see.", (FRIDGE,)),
    "several": Case("qwen25", f"{_CALL}\n{_GO}", "", (FRIDGE, ("go", {}))),
    "drafted in a thought": _stays("qwen25", f"<think>{_DRAFT}</think>Hello", THOUGHTS),
    "behind a thought": Case(
        "qwen25", f"<think>\n{_DRAFT}\n</think>\n\n{_CALL}", f"<think>\n{_DRAFT}\n</think>", (FRIDGE,), THOUGHTS
    ),
    "thought that the prompt began": Case(
        "qwen25", f"{_DRAFT}\n</think>\n{_CALL}", f"{_DRAFT}\n</think>", (FRIDGE,), THOUGHTS, opened=True
    ),
    "thought that the prompt began, open": Case("qwen25", _DRAFT, _DRAFT, (), THOUGHTS, opened=True),
    "thought without a beginning": Case(
        "qwen25", f"{_DRAFT}</think>\n{_CALL}", f"{_DRAFT}</think>", (FRIDGE,), THOUGHTS
    ),
    "thought without an end": _stays("qwen25", f"<think>\n{_DRAFT}", THOUGHTS),
    "second thought": _stays("qwen25", f"<think>a</think>b\n<think>\n{_DRAFT}", THOUGHTS),
    "end of a thought in an argument": Case(
        "hermes", _hermes('{"name": "look", "arguments": {"at": "</think>"}}'), "", (("look", {"at": "</think>"}),)
    ),
    "in code": _stays("hermes", f"Like this:\n```xml\n{_CALL}\n```\nSee?", CODE),
    "in code of four": _stays("hermes", f"````\n```\n{_CALL}\n````", CODE),
    "in code without an end": _stays("hermes", f"~~~\n{_CALL}", CODE),
    "in code on a line": _stays("hermes", f"```{_LINE}```", CODE),
    "in quoted code": _stays("hermes", f"> ```\n> {_LINE}\n> ```", CODE),
    "in code of a list": _stays("hermes", f"1. Call:\n    ```\n    {_LINE}\n    ```\n- ```\n  {_LINE}\n  ```", CODE),
    "in code within a line": _stays("hermes", f"Write `{_LINE}` or ``so: {_LINE}``.", CODE),
    "behind code of a list": Case("hermes", f"- ```\n  ls\n  ```\n{_CALL}", "- ```\n  ls\n  ```", (FRIDGE,)),
    "quoted fence in code": _stays("hermes", f"```\n> ```\n{_LINE}\n```", CODE),
    "behind a lone backtick": Case("hermes", f"The key ` is free.\n{_CALL}", "The key ` is free.", (FRIDGE,)),
    "behind code": Case("hermes", f"```\nls\n```\n{_CALL}", "```\nls\n```", (FRIDGE,)),
    "code in an argument": Case(
        "hermes", _hermes('{"name": "look", "arguments": {"at": "\\n```\\n"}}'), "", (("look", {"at": "\n```\n"}),)
    ),
    "end in an argument": Case(
        "hermes", _hermes('{"name": "look", "arguments": {"at": "a</tool_call>b"}}'), "",
        (("look", {"at": "a</tool_call>b"}),), CLOSING,
    ),
    "raw line break": Case(
        "hermes", _hermes('{"name": "look", "arguments": {"at": "a\nb"}}'), "", (("look", {"at": "a\nb"}),), RAW
    ),
    "arguments as text": Case(
        "hermes", _hermes('{"name": "look", "arguments": "{\\"at\\": \\"fridge\\"}"}'), "", (FRIDGE,), STRINGS
    ),
    "arguments null": Case("hermes", _hermes('{"name": "go", "arguments": null}'), "", (("go", {}),), STRINGS),
    "arguments as no text": Case("hermes", _hermes('{"name": "go", "arguments": ""}'), "", (("go", {}),), STRINGS),
    "arguments as other text": _stays("hermes", _hermes('{"name": "look", "arguments": "fridge"}'), STRINGS),
    "no end": Case("hermes", _CALL.removesuffix("\n</tool_call>"), "", (FRIDGE,)),
    "no end before the next": Case("hermes", f"{_CALL[:-12]}{_GO}", "", (FRIDGE, ("go", {})), CLOSING),
    "cut inside": _stays("hermes", _CALL[:40]),
    "no JSON": _stays("hermes", "<tool_call>{not json}</tool_call>"),
    "a brace too many": _stays("hermes", _hermes('{"name": "go", "arguments": {}}}')),
    "unknown tool": _stays("hermes", _hermes('{"name": "burn", "arguments": {}}'), UNKNOWN),
    "half a character": _stays("hermes", _hermes('{"name": "look", "arguments": {"at": "\\ud83d"}}'), JSON),
    "not a number": _stays("hermes", _hermes('{"name": "look", "arguments": {"n": NaN}}'), JSON),
    "too large": _stays("hermes", _hermes('{"name": "look", "arguments": {"n": 1e999}}'), JSON),
    "twice": _stays("hermes", _hermes('{"name": "look", "arguments": {"n": 1, "n": 2}}'), JSON),
    "deep": _stays("hermes", _hermes('{"name": "look", "arguments": {"n": ' + "[" * 3000 + "]" * 3000 + "}}")),
}  # fmt: skip

_LLAMA = '{"name": "look", "parameters": {"at": "fridge"}}'

LLAMA: Final = {
    "one": Case("llama3", _LLAMA, "", (FRIDGE,)),
    "marked": Case("llama3", f"<|python_tag|>{_LLAMA}", "", (FRIDGE,)),
    "text and one": Case("llama3", f"Let me see.<|python_tag|>{_LLAMA}", "Let me see.", (FRIDGE,)),
    "several": Case(
        "llama3", f'{_LLAMA};{{"name": "go", "parameters": {{}}}}', "", (FRIDGE, ("go", {}))
    ),
    "several, spaced": Case(
        "llama3", f'<|python_tag|>{_LLAMA}; {{"name": "go", "parameters": {{}}}}', "", (FRIDGE, ("go", {}))
    ),
    "several, spaced, not marked": Case("llama3", f"{_LLAMA} ; {_LLAMA}", "", (FRIDGE, FRIDGE)),
    "several lines": Case("llama3", f"{_LLAMA}\n{_LLAMA}", "", (FRIDGE, FRIDGE)),
    "several lines, marked": Case("llama3", f"<|python_tag|>{_LLAMA}\n{_LLAMA}", "", (FRIDGE, FRIDGE)),
    "in text": _stays("llama3", f"I could write {_LLAMA}."),
    "text behind": _stays("llama3", f"{_LLAMA} is a call.", BEHIND),
    "other JSON": _stays("llama3", '{"at": "fridge"}', UNKNOWN),
    "program": _stays("llama3", '<|python_tag|>print("fridge")', MARKER),
    "in code": _stays("llama3", f"```\n<|python_tag|>{_LLAMA}\n```", CODE),
    "raw line break": Case(
        "llama3", '{"name": "look", "parameters": {"at": "a\nb"}}', "", (("look", {"at": "a\nb"}),), RAW
    ),
    "separator in an argument": Case(
        "llama3", '{"name": "look", "parameters": {"at": "a;{b"}}', "", (("look", {"at": "a;{b"}),)
    ),
}  # fmt: skip

_ARRAY = '[{"name": "look", "arguments": {"at": "fridge"}}, {"name": "go", "arguments": {}}]'

MISTRAL: Final = {
    "list": Case("mistral", f"[TOOL_CALLS] {_ARRAY}", "", (FRIDGE, ("go", {}))),
    "list, close": Case(
        "mistral", f"[TOOL_CALLS]{_ARRAY}", "", (FRIDGE, ("go", {})), "the list needs a space in front"
    ),
    "text and list": Case("mistral", f"Let me see.[TOOL_CALLS] {_ARRAY}", "Let me see.", (FRIDGE, ("go", {}))),
    "named": Case("mistral", '[TOOL_CALLS]look[ARGS]{"at": "fridge"}', "", (FRIDGE,)),
    "several named": Case(
        "mistral", '[TOOL_CALLS]look[ARGS]{"at": "fridge"}[TOOL_CALLS]go[ARGS]{}', "", (FRIDGE, ("go", {}))
    ),
    "several named, one marker": Case(
        "mistral", '[TOOL_CALLS]look[ARGS]{"at": "fridge"}go[ARGS]{}', "go[ARGS]{}", (FRIDGE,)
    ),
    "named with an id": Case(
        "mistral", '[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{"at": "fridge"}', "", (FRIDGE,),
        "the id is taken for a part of the name",
    ),
    "marker in an argument": Case(
        "mistral", '[TOOL_CALLS]look[ARGS]{"at": "[TOOL_CALLS]"}', "", (("look", {"at": "[TOOL_CALLS]"}),)
    ),
    "one unknown": _stays("mistral", '[TOOL_CALLS] [{"name": "burn", "arguments": {}}]', UNKNOWN),
    "no JSON": _stays("mistral", "[TOOL_CALLS] are written in brackets.", BROKEN),
    "drafted in a thought": _stays("mistral", '[THINK][TOOL_CALLS]go[ARGS]{}[/THINK]Hello', THOUGHTS),
}  # fmt: skip


def _commentary(body: str, to: str = "functions.look") -> str:
    return f"<|channel|>commentary to={to} <|constrain|>json<|message|>{body}<|call|>"


_FRIDGE = '{"at": "fridge"}'
_NEXT = "<|start|>assistant"

HARMONY: Final = {
    "one": Case("gpt-oss", _commentary(_FRIDGE), "", (FRIDGE,), "a call needs <|start|>assistant in front"),
    "behind a thought": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|>{_NEXT}{_commentary(_FRIDGE)}", "", (FRIDGE,)
    ),
    "drafted in a thought": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>{_FRIDGE} to=functions.look<|end|>{_NEXT}<|channel|>final<|message|>Hello<|return|>",
        "Hello", (), "a thought is text while no call is near",
    ),
    "preamble": Case(
        "gpt-oss", f"<|channel|>commentary<|message|>Let me see.<|end|>{_NEXT}{_commentary(_FRIDGE)}", "Let me see.",
        (FRIDGE,),
    ),
    "to in front": Case(
        "gpt-oss", f" to=functions.look<|channel|>commentary json<|message|>{_FRIDGE}<|call|>", "", (FRIDGE,),
        "it knows the address only behind the channel",
    ),
    "in the channel of thoughts": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|>{_NEXT}{_commentary(_FRIDGE).replace('commentary', 'analysis')}", "",
        (FRIDGE,), ADDRESS,
    ),
    "without arguments": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|>{_NEXT}{_commentary('', 'functions.go')}", "", (("go", {}),)
    ),
    "unknown tool": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|>{_NEXT}{_commentary('{}', 'functions.burn')}", "{}", (), UNKNOWN
    ),
    "no JSON": Case(
        "gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|>{_NEXT}{_commentary('fridge')}", "fridge", (), BROKEN
    ),
    "not ended as a call": Case(
        "gpt-oss", f"{_NEXT}{_commentary(_FRIDGE).removesuffix('<|call|>')}<|end|>{_NEXT}<|channel|>final<|message|>No.<|return|>",
        f"{_FRIDGE}\nNo.", (), "messages are joined by a space",
    ),
    "no channels": _stays("gpt-oss", "Hello"),
}  # fmt: skip


def _glm(body: str, name: str = "look") -> str:
    return f"<tool_call>{name}\n{body}</tool_call>"


_AT = "<arg_key>at</arg_key>\n<arg_value>fridge</arg_value>\n"

GLM: Final = {
    "one": Case("glm45", _glm(_AT), "", (FRIDGE,)),
    "several": Case("glm45", f"{_glm(_AT)}\n{_glm('', 'go')}", "", (FRIDGE, ("go", {}))),
    "types": Case(
        "glm45", _glm("<arg_key>at</arg_key>\n<arg_value>7</arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n"),
        "", (("look", {"at": "7", "n": 7}),),
    ),
    "end in an argument": Case(
        "glm45", _glm("<arg_key>at</arg_key>\n<arg_value>a</tool_call>b</arg_value>\n"), "",
        (("look", {"at": "a</tool_call>b"}),), CLOSING,
    ),
    "drafted in a thought": _stays("glm45", f"<think>{_glm(_AT)}</think>Hello", THOUGHTS),
    "unknown tool": _stays("glm45", _glm(_AT, "burn"), UNKNOWN),
}  # fmt: skip

CASES: Final = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "harmony": HARMONY,
    "glm": GLM,
}
