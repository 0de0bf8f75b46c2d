"""Calls in the formats of model families, held against SGLang's own parsers."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from services.policy.api.calls.between_text import Glm, Hermes, Llama, Mistral
from services.policy.api.calls.format import Format
from services.policy.api.calls.harmony import Harmony
from services.policy.api.calls.parser import CallParser, format_of
from tests.call_cases import CASES, FRIDGE, TOOLS, Case
from tests.chat_families import FAMILIES
from triforge.rendering import Renderer
from triforge.testing.model_folders import CHATML_TEMPLATE, TOOLS_TEMPLATE, chatml_folder

FORMS: dict[str, Format] = {
    "hermes": Hermes(), "llama": Llama(), "mistral": Mistral(), "harmony": Harmony(), "glm": Glm(),
}  # fmt: skip
SGLANG = json.loads((Path(__file__).parents[2] / "contract" / "sglang_calls.json").read_text())
EACH = [(form, name) for form, cases in CASES.items() for name in cases]


def parser(form: str, *, opened: bool = False) -> CallParser:
    return CallParser(TOOLS, FORMS[form], thinks=opened)


def read(form: str, case: Case) -> tuple[str, list[Any]]:
    reply = parser(form, opened=case.opened).parse(case.answer)
    return reply.text, [[call.name, json.loads(call.arguments)] for call in reply.calls]


@pytest.mark.parametrize(("form", "name"), EACH)
def test_answer_is_read_as_its_format_means_it(form: str, name: str) -> None:
    case = CASES[form][name]
    assert read(form, case) == (case.text, [[name, fields] for name, fields in case.calls])


@pytest.mark.parametrize(("form", "name"), EACH)
def test_answer_is_read_as_by_sglang_or_the_difference_has_a_reason(form: str, name: str) -> None:
    case, theirs = CASES[form][name], SGLANG["read"][form][name]
    text, calls = read(form, case)
    same = "error" not in theirs and (text.strip(), calls) == (theirs["text"].strip(), theirs["calls"])  # fmt: skip
    assert same is not bool(case.differs), theirs


@pytest.mark.parametrize("before", ["<think>a</think>", "<think>a</think>b ", "a</think>b "])
def test_a_call_drafted_in_a_later_thought_within_a_line_is_no_call(before: str) -> None:
    call = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    drafted = f"{before}<think>I could {call}</think>c"
    for opened in (False, True):
        assert parser("hermes", opened=opened).parse(drafted).calls == ()
        reply = parser("hermes", opened=opened).parse(f"{drafted}\n{call}")
        assert (reply.text, [each.name for each in reply.calls]) == (drafted, ["go"])


def test_a_word_that_looks_like_the_beginning_of_a_thought_hides_no_call() -> None:
    call = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    reply = parser("hermes").parse(f"I think in <think>.\n{call}")
    assert (reply.text, [each.name for each in reply.calls]) == ("I think in <think>.", ["go"])


def grows(texts: list[str]) -> None:
    for earlier, later in pairwise(texts):
        assert later.startswith(earlier)


# special tokens, which mark the messages of harmony, come whole
@pytest.mark.parametrize(
    ("form", "name"),
    [(form, name) for form, name in EACH if form != "harmony" and name != "deep"],
)
def test_what_is_visible_of_a_growing_answer_stays(form: str, name: str) -> None:
    case = CASES[form][name]
    reader = parser(form, opened=case.opened)
    shown = [reader.visible(case.answer[:end]) for end in range(len(case.answer) + 1)]
    grows([*shown, reader.parse(case.answer).text])


# ---- by templates and tokens ----

_TURNS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' }}{% for c in m.tool_calls or [] %}CALL{% endfor %}"
    "{{ m.content + '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
_BODIES = {
    "hermes": '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ JSON }}}</tool_call>',
    "llama": '{"name": "{{ c.function.name }}", "parameters": {{ JSON }}}',
    "mistral": "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ JSON }}",
    "harmony": "<|channel|>commentary to=functions.{{ c.function.name }} <|constrain|>json<|message|>{{ JSON }}<|call|>",
    "glm": "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
}
TEMPLATES = {
    form: _TURNS.replace("CALL", body).replace("JSON", "c.function.arguments | tojson")
    for form, body in _BODIES.items()
}
SPECIAL = (
    "<|eot|>", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>", "<|return|>",
    "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = chatml_folder(tmp_path_factory.mktemp("calls") / "model")
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def renderers(folder: Path) -> dict[str, Renderer]:
    text = (folder / "tokenizer.json").read_text()
    ends = [
        Tokenizer.from_str(text).token_to_id(end) for end in ("<|eot|>", "<|call|>", "<|return|>")
    ]
    return {form: Renderer(text, template, eos_ids=ends) for form, template in TEMPLATES.items()}


@pytest.mark.parametrize("form", TEMPLATES)
def test_format_is_the_one_that_the_template_writes(
    form: str, renderers: dict[str, Renderer]
) -> None:
    assert type(format_of(renderers[form].call_text)) is type(FORMS[form])


FORM_OF_FAMILY = {
    "qwen2.5": Hermes, "qwen3": Hermes, "qwq": Hermes, "named-templates": Hermes, "smollm2": Hermes, "llama-3": Llama,
    "mistral-3": Mistral, "mistral-tekken": Mistral, "gpt-oss": Harmony, "glm-4.5": Glm, "glm-4": Hermes,
    "deepseek-v3": Hermes,
}  # fmt: skip
UNREAD = (
    "smollm2",
    "mistral-3",
    "glm-4",
    "deepseek-v3",
)  # they write no call, or one of no known form


@pytest.mark.parametrize("family", FORM_OF_FAMILY)
def test_call_of_a_family_is_read_by_its_template(family: str, tmp_path: Path) -> None:
    made = FAMILIES[family]
    renderer = Renderer.from_folder(made.write(tmp_path / "model"))
    assert type(format_of(renderer.call_text)) is FORM_OF_FAMILY[family]
    if made.call is None or family in UNREAD:
        return
    thought = "Hm.\n</think>\n" if family == "qwq" else ""
    written = made.call("", "look", {"at": "fridge"})
    ids = tokens(tmp_path / "model", thought + written + (made.call_end or made.end))
    reply = CallParser.of(renderer, TOOLS).parse(renderer.decode(ids), ids)
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [FRIDGE]
    assert reply.text == thought.rstrip()


@pytest.mark.parametrize(
    "template", [CHATML_TEMPLATE, TOOLS_TEMPLATE, "{{ raise_exception('no') }}"]
)
def test_template_without_calls_is_read_as_hermes(folder: Path, template: str) -> None:
    text = (folder / "tokenizer.json").read_text()
    if "raise" in template:  # only for calls
        template = "{% if tools %}" + template + "{% endif %}" + CHATML_TEMPLATE
    assert type(format_of(Renderer(text, template).call_text)) is Hermes


def tokens(folder: Path, text: str) -> list[int]:
    """The ids that a model samples, control tokens too."""
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return list(made.encode(text, add_special_tokens=False).ids)


def streamed(renderer: Renderer, ids: list[int], *, opened: bool = False) -> tuple[list[str], Any]:
    """The visible parts of a growing answer whose text has no special tokens, and the whole answer."""
    reader = CallParser.of(renderer, TOOLS)
    if opened:
        reader._thinks = True
    texts = [renderer.decode(ids[:end]).rstrip("\ufffd") for end in range(len(ids))]
    shown = [reader.visible(text, ids[:end]) for end, text in enumerate(texts)]
    return shown, reader.parse(renderer.decode(ids), ids)


@pytest.mark.parametrize(("form", "name"), [each for each in EACH if each[1] != "deep"])
def test_calls_marked_by_special_tokens_are_read_from_ids(
    form: str, name: str, folder: Path, renderers: dict[str, Renderer]
) -> None:
    case = CASES[form][name]
    shown, reply = streamed(renderers[form], tokens(folder, case.answer), opened=case.opened)
    grows([*shown, reply.text])
    plain = case.text
    for special in SPECIAL:
        plain = plain.replace(special, "")
    assert reply.text == plain
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [*case.calls]


PIECES = st.sampled_from(
    [*SPECIAL, "a", " ", "\n", "{", "}", "```", "\n```\n", "`", "> ", "\n- ```\n", "<think>", "</think>", "😀", "to=functions.look", "analysis",
     "final", "commentary", "json", "<tool_call>", "</tool_call>", "look", '{"at": "fridge"}', "<arg_key>", "[", "]", ";",
     *(case.answer for form in CASES.values() for case in form.values() if len(case.answer) < 90)]
)  # fmt: skip


@given(st.sampled_from([*TEMPLATES]), st.lists(PIECES, max_size=8).map("".join))
def test_text_that_was_sent_is_never_taken_back(form: str, text: str) -> None:
    folder, renderers = _MADE["folder"], _MADE["renderers"]
    shown, reply = streamed(renderers[form], tokens(folder, text))
    grows([*shown, reply.text])


_MADE: dict[str, Any] = {}


@pytest.fixture(autouse=True, scope="module")
def _made(folder: Path, renderers: dict[str, Renderer]) -> None:
    _MADE.update(folder=folder, renderers=renderers)


def test_characters_that_the_engine_holds_back_are_no_special_tokens(
    folder: Path, renderers: dict[str, Renderer]
) -> None:
    broken = [*tokens(folder, "a😀")[:-1], *tokens(folder, "<|start|>b")]
    shown, reply = streamed(renderers["mistral"], broken)
    grows([*shown, reply.text])
    assert reply.text == "a\ufffdb"


@pytest.mark.parametrize(
    ("form", "piece"),
    [
        ("hermes", "<tool_call>"), ("hermes", '<tool_call>{"a": "'), ("hermes", "<tool_call>["), ("hermes", "```\n"), ("hermes", "`"), ("hermes", "`a"), ("hermes", "``a`"), ("hermes", "- "), ("hermes", "`\n"),
        ("hermes", "<think>"), ("llama", '<|python_tag|>{"a":'), ("llama", "{"), ("mistral", "[TOOL_CALLS]a"),
        ("glm", "<tool_call>a<arg_key>"), ("glm", "<tool_call>a<arg_key>b</arg_key><arg_value>"),
        ("harmony", "<|channel|>"), ("harmony", "<|channel|>a<|message|>"), ("harmony", "<|start|> to=functions.look"),
    ],
)  # fmt: skip
def test_answer_of_any_form_is_read_in_linear_time(form: str, piece: str) -> None:
    text = piece * (400_000 // len(piece))
    began = time.process_time()
    parser(form).parse(text)
    parser(form).visible(text)
    assert time.process_time() - began < 2.0
