# ruff: noqa: RUF001 - a family writes wide bars
"""Borders between turns: what a conversation grows into token by token is what transformers makes of it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.chat_families import FAMILIES, Family
from triforge.errors import InputError, WeightsError
from triforge.rendering import Renderer
from triforge.testing.model_folders import chatml_folder
from triforge.types import ChatMessage

TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Find.", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}  # fmt: skip
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "4"))  # `make properties` tries many more
Message = dict[str, Any]


class Rollout:
    """A conversation of one family, played as env_adapter and sessions play it."""

    def __init__(self, folder: Path, family: Family) -> None:
        self.family, self.renderer = family, Renderer.from_folder(folder)
        self.theirs = AutoTokenizer.from_pretrained(folder)
        self.messages: list[Message] = []
        self.ids: list[int] = []
        self.thoughts: list[tuple[int, int]] = []
        self.tools: list[Any] = []

    def text(self, *, prompt: bool = True) -> str:
        """Return transformers' text of the conversation."""
        return str(
            self.theirs.apply_chat_template(
                self.messages,
                tools=self.tools or None,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        )

    def encoded(self, text: str) -> list[int]:
        return list(self.theirs(text, add_special_tokens=False).input_ids)

    def ask(self, new: list[Message]) -> list[int]:
        """Return the next prompt."""
        if not self.ids:
            self.messages += new
            return self.renderer.render_with_tools(self.messages, self.tools)
        answer = self.messages[-1]
        self.messages += new
        return self.renderer.extend_with_tools(self.ids, new, self.tools, answer)

    def answer(
        self, prompt: list[int], text: str, end: str, message: Message, thought: str
    ) -> None:
        """Sample an answer: its text as the tokenizer splits it there, then an end token."""
        opened = self.text()
        begun = opened.endswith("<think>\n")
        written = text
        if thought:
            written = ("" if begun else "<think>\n") + thought + "\n</think>\n\n" + text
        known, both = self.encoded(opened), self.encoded(opened + written)
        assert both[: len(known)] == known
        if thought and self.family.thoughts == "dropped":
            think = self.theirs.convert_tokens_to_ids("<think>")
            first = max(i for i, t in enumerate([*prompt, *both[len(known) :]]) if t == think)
            rest = len(self.encoded(opened + written)) - len(known)
            kept = len(both) - len(self.encoded(opened + written.removesuffix(text)))
            self.thoughts.append((first, len(prompt) + rest - kept))
        self.ids = [*prompt, *both[len(known) :], self.theirs.convert_tokens_to_ids(end)]
        shown = "<think>\n" + thought + "\n</think>\n\n" if thought else ""
        self.messages.append({**message, "content": shown + message["content"]})

    def without_thoughts(self, ids: list[int]) -> list[int]:
        for start, end in reversed(self.thoughts):
            ids = ids[:start] + ids[end:]
        return ids


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: family.write(root / name) for name, family in FAMILIES.items()}


# A special token in a message is plain text here, but a token to transformers.
CONTENT = (
    st.text(alphabet="ab the\nuser.{}<|>é日😀", min_size=1, max_size=12)
    .map(lambda text: f"x{text}x")
    .filter(lambda text: "<s>" not in text)
)
TURN = st.tuples(CONTENT, CONTENT, st.integers(0, 2), st.booleans())


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(system=st.booleans(), turns=st.lists(TURN, min_size=2, max_size=4), tools=st.booleans())
def test_a_conversation_grows_into_the_ids_of_transformers(
    folders: dict[str, Path], name: str, system: bool, turns: list[Any], tools: bool
) -> None:
    family = FAMILIES[name]
    play = Rollout(folders[name], family)
    play.tools = [TOOL] if tools and family.call and "tools" not in family.refuses else []
    new: list[Message] = []
    if system and "system" not in family.refuses:
        new.append({"role": "system", "content": "xSx"})
    for number, (asked, reply, calls, thinks) in enumerate(turns):
        new.append({"role": "user", "content": asked})
        prompt = play.ask(new)
        must = play.text().endswith("<think>\n")
        thought = "xTx" if must or (thinks and family.thoughts) else ""
        for call in range(calls if play.tools else 0):
            assert family.call is not None
            arguments = {"x": reply}
            called = {"id": f"call{number:02}{call:03}", "type": "function", "function": {"name": "find", "arguments": arguments}}  # fmt: skip
            content = "xCx" if "xCx" in family.call("xCx", "find", arguments) else ""
            text = family.call(content, "find", arguments)
            message = {"role": "assistant", "content": content, "tool_calls": [called]}
            play.answer(prompt, text, family.call_end or family.end, message, thought)
            result = {
                "role": "tool",
                "content": reply,
                "tool_call_id": called["id"],
                "name": "find",
            }
            prompt = play.ask([result])
        play.answer(prompt, family.lead + reply + family.tail, family.end, {"role": "assistant", "content": reply}, thought)  # fmt: skip
        new = []
    final = play.ask([{"role": "user", "content": "xEx"}])
    assert play.without_thoughts(final) == play.encoded(play.text())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_answer_gets_the_border_too(folders: dict[str, Path], name: str) -> None:
    family = FAMILIES[name]
    play = Rollout(folders[name], family)
    prompt = play.ask([{"role": "user", "content": "xQx"}])
    play.answer(
        prompt, family.lead + "xAx", family.end, {"role": "assistant", "content": "xAx"}, ""
    )
    whole = play.ids
    play.ids = whole[:-1]
    if play.text().endswith("<think>\n"):
        pytest.skip("its history drops the beginning of the thought that the prompt holds")
    assert play.ask([{"role": "user", "content": "xEx"}]) == play.encoded(play.text())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_demonstration_has_a_trained_end(folders: dict[str, Path], name: str) -> None:
    play = Rollout(folders[name], FAMILIES[name])
    play.messages = [
        {"role": role, "content": f"x{number}x"}
        for number, role in enumerate(["user", "assistant", "user", "assistant"])
    ]
    sequences = play.renderer.encode_supervised([ChatMessage(**m) for m in play.messages])
    trained = [t for ids, mask in sequences for t, on in zip(ids, mask, strict=True) if on]
    text = play.renderer.decode(trained)
    assert ("x1x" in text, "x3x" in text, "x0x" in text) == (True, True, False)
    ends = sum(token in play.renderer.eos_ids for token in trained)
    assert ends == 2
    ids, mask = sequences[-1]
    assert mask[-1]
    assert ids[-1] in play.renderer.eos_ids
    if play.text().endswith("<think>\n"):
        return  # without thoughts no answer is what such a prompt leads to
    theirs = play.encoded(play.text(prompt=False))
    assert ids[:-1] == theirs[: len(ids) - 1]


def test_templates_that_move_text_are_refused_where_it_would_show(folders: dict[str, Path]) -> None:
    for name, family in FAMILIES.items():
        renderer = Renderer.from_folder(folders[name])
        assert bool(renderer.refuses_system) == ("system" in family.refuses)
        chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        if "system" in family.refuses:
            with pytest.raises(InputError, match="system message"):
                renderer.demand_turns(system=True)
        if "tools" in family.refuses:
            assert renderer.render_with_tools(chat[1:], [TOOL])  # one turn is no fault
            with pytest.raises(InputError, match="once a turn is added"):
                renderer.demand_turns(tools=True)


def test_a_message_that_the_template_moves_to_the_beginning_is_refused(
    folders: dict[str, Path],
) -> None:
    play = Rollout(folders["deepseek-v3"], FAMILIES["deepseek-v3"])
    prompt = play.ask([{"role": "user", "content": "xQx"}])
    play.answer(prompt, "xAx", "<｜end｜>", {"role": "assistant", "content": "xAx"}, "")
    late = [{"role": "user", "content": "xEx"}, {"role": "system", "content": "xSx"}]
    for new in (late, late[::-1]):
        with pytest.raises(InputError, match="at the beginning"):
            play.renderer.extend_with_tools(play.ids, new, [])


def test_a_template_whose_turns_count_messages_takes_no_system_message(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' + '\n' * (loop.index0 % 2) }}{% endfor %}"
    )
    with pytest.raises(InputError, match="behind one answer"):
        Renderer.from_folder(folder).demand_turns(system=True)


def test_an_end_without_the_template_s_space_before_it_is_not_doubled(
    folders: dict[str, Path],
) -> None:
    play = Rollout(folders["llama-2"], FAMILIES["llama-2"])
    prompt = play.ask([{"role": "user", "content": "xQx"}])
    play.answer(prompt, " xAx", "</s>", {"role": "assistant", "content": "xAx"}, "")
    final = play.ask([{"role": "user", "content": "xEx"}])
    text = play.theirs.decode(final, skip_special_tokens=False)
    assert text.replace(" ", "") == play.text().replace(" ", "")


def bad_templates() -> Iterator[tuple[str, str]]:
    turn = "{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}"
    yield "last only", "{% for m in messages[-2:] %}" + turn + "{% endfor %}"
    yield "counts", "{{ messages | length }}{% for m in messages %}" + turn + "{% endfor %}"
    yield (
        "counts turns",
        "{% for m in messages %}{% if m.role == 'user' %}{{ '[Round ' ~ (loop.index0 // 2 + 1) ~ ']' }}{% endif %}"
        + turn
        + "{% endfor %}",
    )
    yield (
        "one turn",
        (
            "{% if messages | length > 2 %}{{ raise_exception('one turn') }}{% endif %}"
            "{% for m in messages %}" + turn + "{% endfor %}"
        ),
    )


@pytest.mark.parametrize(("name", "template"), list(bad_templates()))
def test_a_template_that_rewrites_a_conversation_is_refused_at_start(
    tmp_path: Path, name: str, template: str
) -> None:
    folder = chatml_folder(tmp_path)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(WeightsError, match="token by token"):
        Renderer.from_folder(folder)


def test_named_templates_in_files_are_chosen_as_by_transformers(tmp_path: Path) -> None:
    folder = FAMILIES["named-templates"].write(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(
        FAMILIES["named-templates"].tool_template.replace("Tools:", "Use:")
    )
    (folder / "chat_template.jinja").write_text(FAMILIES["named-templates"].template)
    ours, theirs = Renderer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "a"}]
    for tools in ([], [TOOL]):
        expected = theirs.apply_chat_template(
            chat, tools=tools or None, add_generation_prompt=True, return_dict=False
        )
        assert ours.render_with_tools(chat, tools) == expected
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(WeightsError, match="tool_use"):
        Renderer.from_folder(folder)
