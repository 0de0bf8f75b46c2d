"""Messages to token ids and back, by the model folder's own chat template. No torch, no transformers.

Three promises:

* a conversation is never tokenised twice: `extend` returns the prefix ids followed by new ones;
* text is only text: a control token's string inside a message's content does not become that control token;
* ordinary conversations get the same ids as by transformers' `apply_chat_template`.

For a vision model each image becomes its number of image tokens; the places of images are returned with the ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from triforge.chat_template import (
    decode,
    encode,
    eos_ids_of,
    read_text,
    special_tokens_of,
    template_of,
    tokenizer_of,
    vocab_size_of,
    with_strings,
)
from triforge.errors import InputError, WeightsError
from triforge.template_sandbox import compile_template, fill
from triforge.types import ChatMessage, ImageRef, PlacedImage, TextPart
from triforge.vision.image_spec import ImageSpec

# Private-use characters replace pieces of content while the template runs. Templates neither test nor trim them.
_OPEN, _CLOSE, _SENTINEL = "\ue000", "\ue001", "\ue002"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_OWN = f"[{_OPEN}{_CLOSE}{_SENTINEL}]"
# A role marker that is an ordinary word of a small vocabulary, not registered as a special token.
_MARKER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")

_ASKED = "What is asked?"  # stands for a user's message
_LONGEST = 1 << 22  # characters: a million tokens of text, which take a tokenizer seconds

_PAST = (ChatMessage(role="user", content="."), ChatMessage(role="assistant", content="."))


@dataclass(frozen=True, slots=True)
class _Scaffold:
    """The template's text around an assistant's content, read once from a probe."""

    closing: tuple[int, ...]  # ids from the end of the content to the end of its turn
    markers: tuple[str, ...]  # strings of control tokens the template uses


class Renderer:
    """The owner of the tokenizer. Immutable and safe to share between coroutines.

    `eos_ids` end a response: the model's own and the template's end-of-turn token. Ids from `vocab_size` on may crash an engine.
    `image_spec` describes the image tokens of a vision model; None for a text model.
    """

    eos_ids: tuple[int, ...]
    vocab_size: int
    image_spec: ImageSpec | None

    def __init__(
        self,
        tokenizer_json: str,
        template: str,
        *,
        variables: dict[str, str] | None = None,
        eos_ids: Sequence[int] = (),
        model_vocab_size: int = 0,
        image_spec: ImageSpec | None = None,
    ) -> None:
        """See `from_folder`. `variables` are special tokens by name (`bos_token`, ...), given to the template."""
        self.image_spec = image_spec
        self._live = tokenizer_of(tokenizer_json)
        self._plain = tokenizer_of(tokenizer_json)
        self._plain.encode_special_tokens = True  # the strings of special tokens are plain text
        self._template = compile_template(template)
        self._variables = dict(variables or {})
        named = self._live.get_vocab_size(with_added_tokens=True)
        self.vocab_size = max(named, model_vocab_size)
        added = self._live.get_added_tokens_decoder()
        special = {index: token.content for index, token in added.items() if token.special}
        for content in self._variables.values():
            index = self._live.token_to_id(content)
            if index is not None:
                special[index] = content
        self._hostile: re.Pattern[str] = re.compile(_OWN)
        try:
            scaffold = self._probe({token.content for token in added.values()})
        except InputError as error:
            raise WeightsError(f"chat template: {error.detail}") from error
        self._closing = scaffold.closing
        control = set(special.values()) | set(scaffold.markers)
        self._unknown = self._live.token_to_id(self._variables.get("unk_token", ""))
        self._control_ids = set(special) | {
            index for m in scaffold.markers if (index := self._live.token_to_id(m)) is not None
        }
        self._hostile = re.compile(
            "|".join([_OWN, *(re.escape(s) for s in sorted(control, key=len, reverse=True) if s)])
        )
        ends = list(dict.fromkeys(eos_ids))
        if self._closing and self._closing[0] in self._control_ids:
            ends += [self._closing[0]] if self._closing[0] not in ends else []
        self.eos_ids = tuple(ends)

    @classmethod
    def from_folder(cls, path: str | Path) -> Renderer:
        """Read tokenizer.json, the chat template and the end-of-text ids from a model folder."""
        folder = Path(path)
        variables = special_tokens_of(folder)
        text = read_text(folder / "tokenizer.json")
        ends = eos_ids_of(folder)
        eos = tokenizer_of(text).token_to_id(variables.get("eos_token", ""))
        if eos is not None:
            ends.append(eos)
        return cls(
            text,
            template_of(folder),
            variables=variables,
            eos_ids=ends,
            model_vocab_size=vocab_size_of(folder),
            image_spec=ImageSpec.of_folder(folder),
        )

    @cached_property
    def call_text(self) -> str:
        """The template's text of a message that calls a tool; empty if it shows none."""
        called = {"name": "look_up", "arguments": {"key": "value"}}
        messages = [
            {"role": "user", "content": _ASKED},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "abcdefghi", "type": "function", "function": called}],
            },
        ]
        schema = {"type": "object", "properties": {"key": {"type": "string", "description": "A key."}}}  # fmt: skip
        tool = {"name": "look_up", "description": "Look up.", "parameters": schema}
        try:
            text = self._fill(
                messages=messages,
                tools=[{"type": "function", "function": tool}],
                add_generation_prompt=False,
            )
        except InputError:
            return ""
        _, asked, shown = text.rpartition(_ASKED)
        return shown if asked and "look_up" in shown else ""

    @cached_property
    def opening(self) -> str:
        """The template's text before an answer."""
        messages = [{"role": "user", "content": _ASKED}]
        try:
            text = self._fill(messages=messages, add_generation_prompt=True)
        except InputError:
            return ""
        return text.rpartition(_ASKED)[2]

    @cached_property
    def special_texts(self) -> Mapping[int, str]:
        """The special tokens, which the text of an answer leaves out, by id."""
        added = self._live.get_added_tokens_decoder()
        return {index: token.content for index, token in added.items() if token.special}

    def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of a whole conversation."""
        if not messages:
            raise InputError("messages: expected at least one, given none")
        literal: list[str] = []
        return self._encode(self._show(messages, add_generation_prompt, literal), literal)

    def render_with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Return the ids of a whole conversation in the template's own terms: with tools, their calls and their results."""
        literal: list[str] = []
        fields = with_strings(
            {"messages": messages, "tools": tools or None}, lambda s: self._guard(s, literal)
        )
        text = self._fill(**fields, add_generation_prompt=True)
        if tools and text == self._fill(messages=fields["messages"], add_generation_prompt=True):
            raise InputError(
                f"tools: given {len(tools)}, but the chat template of the active model shows none; leave them out, or "
                "serve a model whose template does"
            )
        return self._encode(text, literal)

    def extend_with_tools(
        self,
        prefix_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """Extend a conversation like `extend`, in the template's own terms; the prefix begins with the tools."""
        literal: list[str] = []
        fields = with_strings(
            {"messages": messages, "tools": tools or None}, lambda s: self._guard(s, literal)
        )
        past = [{"role": "user", "content": "."}, {"role": "assistant", "content": _SENTINEL}]
        shown = self._fill(
            messages=[*past, *fields["messages"]], tools=fields["tools"], add_generation_prompt=True
        )
        bridge = self._encode(_behind(shown, str(messages[0]["role"])), literal)
        return [*prefix_ids, *bridge[self._overlap(prefix_ids, bridge) :]]

    def extend(
        self,
        prefix_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """Return the prefix ids, unchanged, followed by those of the new messages; without prefix ids a new conversation.

        The prefix ends with an assistant's response, complete or truncated. The template's text between such a response and
        the next message is added, without the part that was already sampled.
        """
        if not prefix_ids:
            return self.render(new_messages, add_generation_prompt=generation_prompt)
        if not new_messages:
            return list(prefix_ids)
        literal: list[str] = []
        text = self._after_response(new_messages, generation_prompt, literal)
        bridge = self._encode(text, literal)
        return [*prefix_ids, *bridge[self._overlap(prefix_ids, bridge) :]]

    def extend_seeing(
        self,
        prefix_ids: Sequence[int],
        prefix_images: Sequence[PlacedImage],
        new_messages: Sequence[ChatMessage],
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Extend a conversation with images by messages; see `seeing`."""
        images = [image for message in new_messages for image in message.images]
        return self.seeing(
            prefix_ids, prefix_images, images, lambda prefix: self.extend(prefix, new_messages)
        )

    def seeing(
        self,
        prefix_ids: Sequence[int],
        prefix_images: Sequence[PlacedImage],
        images: Sequence[ImageRef],
        extend: Callable[[list[int]], list[int]],
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Extend a conversation with images by `extend`; return the ids and the places of all images.

        Image tokens of the prefix without an image were sampled. Engines cannot tell them from real ones, so another token
        replaces them, and the prompt begins with other ids than the prefix.
        """
        image_spec = self.image_spec
        if image_spec is None:
            raise InputError(
                "the messages hold images, but the active model is no vision model; serve one, or let the environment show no "
                "screenshots"
            )
        image_spec.positions(len(prefix_ids), prefix_images)
        prefix = self._without_strays(prefix_ids, prefix_images, image_spec)
        extended = extend(prefix)
        new, placed = image_spec.expanded(extended[len(prefix) :], images, offset=len(prefix))
        return [*prefix, *new], (*prefix_images, *placed)

    def _without_strays(
        self, ids: Sequence[int], images: Sequence[PlacedImage], image_spec: ImageSpec
    ) -> list[int]:
        inert = self._unknown if self._unknown is not None else next(iter(self.eos_ids), 0)
        cleaned = list(ids)
        real = {place for placed in images for place in range(placed.start, placed.end)}
        if any(cleaned[place] != image_spec.image for place in real):
            raise InputError("prefix_images: other tokens stand in the place of an image")
        for place, token in enumerate(cleaned):
            if token in (image_spec.image, image_spec.video) and place not in real:
                cleaned[place] = inert
        return cleaned

    def encode_supervised(self, messages: Sequence[ChatMessage]) -> tuple[list[int], list[bool]]:
        """Return the ids of a demonstration as of a rollout, and for each whether it is trained on.

        Assistants' contents and their end-of-turn tokens are trained on; the ids end with the last of these.
        """
        ids: list[int] = []
        mask: list[bool] = []
        pending: list[ChatMessage] = []
        for number, message in enumerate(messages):
            if message.role != "assistant":
                pending.append(message)
                continue
            if not pending:
                raise InputError(
                    f"messages.{number}: an assistant message needs a system or user message before it"
                )
            ids = self.extend(ids, pending)
            mask += [False] * (len(ids) - len(mask))
            pending = []
            response = self.encode_text(_text_of(message)) + self._end_of_turn()
            ids += response
            mask += [True] * len(response)
        if pending or not ids:
            raise InputError("messages: the last message of a demonstration must be an assistant's")
        return ids, mask

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text; strings of control tokens stay text."""
        literal: list[str] = []
        return self._encode(self._guard(text, literal), literal)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return decode(self._live, ids, skip_special_tokens=skip_special_tokens)

    def _end_of_turn(self) -> list[int]:
        return [self._closing[0]] if self._closing and self._closing[0] in self.eos_ids else []

    def _overlap(self, prefix_ids: Sequence[int], bridge: Sequence[int]) -> int:
        """Return the number of leading ids of the bridge with which the prefix already ends."""
        for size in range(min(len(self._closing), len(prefix_ids)), 0, -1):
            closing = list(self._closing[:size])
            if list(prefix_ids[-size:]) == closing and list(bridge[:size]) == closing:
                return size
        return 0

    def _after_response(
        self, new_messages: Sequence[ChatMessage], generation_prompt: bool, literal: list[str]
    ) -> str:
        """Return the template's text after an assistant's content: its closing, the new messages, the next opening."""
        shown = self._show([*_PAST, *new_messages], generation_prompt, literal, response=1)
        return _behind(shown, new_messages[0].role)

    def _show(
        self,
        messages: Sequence[ChatMessage],
        generation_prompt: bool,
        literal: list[str],
        *,
        response: int | None = None,
    ) -> str:
        """Return the template's text. Control strings in contents become placeholders that index `literal`."""
        shown = [
            {
                "role": message.role,
                "content": _SENTINEL if i == response else self._content(message, literal),
            }
            for i, message in enumerate(messages)
        ]
        return self._fill(messages=shown, add_generation_prompt=generation_prompt)

    def _fill(self, **fields: Any) -> str:
        return fill(self._template, **fields, **self._variables)

    def _content(self, message: ChatMessage, literal: list[str]) -> str | list[dict[str, str]]:
        """Return a message's content for a template; in parts only where there are images."""
        if isinstance(message.content, str):
            return self._guard(message.content, literal)
        if self.image_spec is None or not message.images:
            return self._guard(_text_of(message), literal)
        return [
            {"type": "text", "text": self._guard(part.text, literal)}
            if isinstance(part, TextPart)
            else {"type": "image"}
            for part in message.content
        ]

    def _guard(self, content: str, literal: list[str]) -> str:
        _demand_short(content)

        def hide(match: re.Match[str]) -> str:
            literal.append(match.group())
            return f"{_OPEN}{len(literal) - 1}{_CLOSE}"

        return self._hostile.sub(hide, content)

    def _encode(self, text: str, literal: Sequence[str]) -> list[int]:
        _demand_short(text)
        if not literal:
            return encode(self._live, text)
        ids: list[int] = []
        for number, piece in enumerate(_PLACEHOLDER.split(text)):
            if number % 2:
                ids += self._inert(literal[int(piece)])
            elif piece:
                ids += encode(self._live, piece)
        return ids

    def _inert(self, text: str) -> list[int]:
        """Return ids of a control token's string, none of which is a control token."""
        ids = encode(self._plain, text)
        if self._control_ids.isdisjoint(ids):
            return ids
        if self._unknown is not None:  # a vocabulary of whole words knows the marker as a word
            return [self._unknown]
        letters = [i for c in text for i in encode(self._plain, c)]
        return [i for i in letters if i not in self._control_ids]

    def _probe(self, registered: set[str]) -> _Scaffold:
        shown = self._show(_PAST, False, [], response=1)
        opened = self._show(_PAST[:1], True, [])
        before, sentinel, after = shown.partition(_SENTINEL)
        if not sentinel or _SENTINEL in after:
            raise WeightsError(
                "chat template: expected every assistant message to be shown once; it is "
                + ("shown twice" if sentinel else "not shown")
            )
        closing = encode(self._live, after)
        words = [self._live.id_to_token(i) for i in encode(self._live, before + after + opened)]
        markers = {w for w in words if w is not None and _MARKER.fullmatch(w)}
        return _Scaffold(tuple(closing), tuple(sorted(markers - registered)))


def _behind(shown: str, role: str) -> str:
    """Return the template's text after the assistant's content."""
    _, sentinel, after = shown.partition(_SENTINEL)
    if not sentinel or _SENTINEL in after:
        raise InputError(
            f"the chat template does not show an assistant message exactly once before {role} messages"
        )
    return after


def _text_of(message: ChatMessage) -> str:
    if message.images:
        raise InputError("the message holds an image; expected text only")
    return message.text


def _demand_short(text: str) -> None:
    if len(text) > _LONGEST:
        raise InputError(
            f"messages: given {len(text)} characters of text, expected at most {_LONGEST}: no context is longer; send less"
        )
