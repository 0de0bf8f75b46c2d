"""Messages to token ids and back, by the model folder's own chat template. No torch, no transformers.

Three promises:

* a conversation is never tokenised twice: `extend` returns the prefix ids followed by new ones (an end token that the
  template does not write in a history gives way to the template's);
* text is only text: a control token's string inside a message's content does not become that control token;
* ordinary conversations get the same ids as by transformers' `apply_chat_template`.

For a vision model each image becomes its number of image tokens; the places of images are returned with the ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from triforge.chat_template import (
    adds_space,
    decode,
    encode,
    encode_behind,
    eos_ids_of,
    read_text,
    special_tokens_of,
    templates_of,
    tokenizer_of,
    vocab_size_of,
    with_strings,
)
from triforge.errors import InputError, WeightsError
from triforge.template_sandbox import compile_template, fill
from triforge.token_text import TokenText
from triforge.turn_borders import ANSWER, NEXT, Border, Borders
from triforge.types import ChatMessage, ImageRef, PlacedImage, TextPart
from triforge.vision.image_spec import ImageSpec

# Private-use characters replace pieces of content while the template runs. Templates neither test nor trim them.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_OWN = f"[{_OPEN}{_CLOSE}{ANSWER}{NEXT}]"
# A role marker that is an ordinary word of a small vocabulary, not registered as a special token; no byte of SentencePiece.
_MARKER = re.compile(r"<(?!0x[0-9A-F]{2}>)[^<>\s]+>|\[[^\[\]\s]+\]")

_ASKED = "What is asked?"  # stands for a user's message
_BEFORE = "."  # stands for the text of an answer
_LONGEST = 1 << 22  # characters: a million tokens of text, which take a tokenizer seconds


class Renderer:
    """The owner of the tokenizer. Immutable and safe to share between coroutines.

    `eos_ids` end a response: the model's own and the template's end-of-turn token. Ids from `vocab_size` on may crash an engine.
    `image_spec` describes the image tokens of a vision model; None for a text model. `refuses_system` is the reason why
    no turn can be added to a conversation with a system message, or empty.
    """

    eos_ids: tuple[int, ...]
    vocab_size: int
    image_spec: ImageSpec | None

    def __init__(
        self,
        tokenizer_json: str,
        template: str,
        *,
        tool_template: str = "",
        variables: dict[str, str] | None = None,
        eos_ids: Sequence[int] = (),
        model_vocab_size: int = 0,
        image_spec: ImageSpec | None = None,
    ) -> None:
        """See `from_folder`. `variables` are special tokens by name (`bos_token`, ...), given to the template.

        Conversations with tools are written by `tool_template`, where there is one.
        """
        self.image_spec = image_spec
        self._live = tokenizer_of(tokenizer_json)
        self._texts = TokenText(self._live)
        self._plain = tokenizer_of(tokenizer_json)
        self._plain.encode_special_tokens = True  # the strings of special tokens are plain text
        self._template = compile_template(template)
        self._tool_template = compile_template(tool_template) if tool_template else self._template
        self._variables = dict(variables or {})
        named = self._live.get_vocab_size(with_added_tokens=True)
        self.vocab_size = model_vocab_size or named
        added = self._live.get_added_tokens_decoder()
        special = {index: token.content for index, token in added.items() if token.special}
        for content in self._variables.values():
            index = self._live.token_to_id(content)
            if index is not None:
                special[index] = content
        self._borders = Borders(self._fill)
        markers = self._markers() - {token.content for token in added.values()}
        self._unknown = self._live.token_to_id(self._variables.get("unk_token", ""))
        self._control_ids = set(special) | {
            index for m in markers if (index := self._live.token_to_id(m)) is not None
        }
        control = sorted({*special.values(), *markers}, key=lambda text: (-len(text), text))
        self._hostile = re.compile("|".join([_OWN, *(re.escape(s) for s in control if s)]))
        self._adds_space = adds_space(tokenizer_json)
        closing = self._borders.last(self._behind([]), self._control_ids)
        ends = [*eos_ids, *([] if closing.end is None else [closing.ids[closing.end]])]
        self.eos_ids = tuple(dict.fromkeys(ends))
        self._demand_embedded()
        self.refuses_system = self._borders.refusal(system=True)
        self._refuses_tools = self._borders.refusal(tools=True)

    @classmethod
    def from_folder(cls, path: str | Path) -> Renderer:
        """Read tokenizer.json, the chat template and the end-of-text ids from a model folder."""
        folder = Path(path)
        variables = special_tokens_of(folder)
        text = read_text(folder / "tokenizer.json")
        ends, templates = eos_ids_of(folder), templates_of(folder)
        eos = tokenizer_of(text).token_to_id(variables.get("eos_token", ""))
        if eos is not None:
            ends.append(eos)
        return cls(
            text,
            templates["default"],
            tool_template=templates.get("tool_use", ""),
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

    @property
    def opening(self) -> str:
        """The template's text that ends with the prompt of an answer."""
        return self._borders.opened

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
        text = self._fill(
            messages=self._shown(messages, literal), add_generation_prompt=add_generation_prompt
        )
        return self._encode(text, literal)

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
        answer: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Extend a conversation like `extend`, in the template's own terms; the prefix begins with the tools.

        `answer` is the assistant's message with which the prefix ends; some templates write results of tools by its calls.
        """
        literal: list[str] = []
        fields = with_strings(
            {"messages": messages, "tools": tools or None, "answer": answer}, lambda s: self._guard(s, literal)
        )  # fmt: skip
        border = self._borders.between(
            fields["messages"], self._behind(literal), self.eos_ids, tools=fields["tools"], answer=fields["answer"]
        )  # fmt: skip
        return border.behind(prefix_ids, self.eos_ids)

    def extend(
        self,
        prefix_ids: Sequence[int],
        new_messages: Sequence[ChatMessage],
        *,
        generation_prompt: bool = True,
    ) -> list[int]:
        """Return the prefix ids followed by those of the new messages; without prefix ids a new conversation.

        The prefix ends with an assistant's response, complete or truncated. The template's text between such a response and
        the next message is added, without the end token that was sampled already. The last id of the prefix changes only if
        it is an end token that the template does not write before these messages: the prompt is as the template writes it.
        """
        if not prefix_ids:
            return self.render(new_messages, add_generation_prompt=generation_prompt)
        if not new_messages:
            return list(prefix_ids)
        literal: list[str] = []
        border = self._border(new_messages, literal, generation_prompt)
        return border.behind(prefix_ids, self.eos_ids)

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
        if extended[: len(prefix)] != prefix:  # its end token gave way to the template's
            prefix = prefix[:-1]
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

    def encode_supervised(
        self, messages: Sequence[ChatMessage]
    ) -> list[tuple[list[int], list[bool]]]:
        """Return a demonstration as ids of a rollout, and for each whether it is trained on.

        Answers and the tokens that end them are trained on; the ids end with the last of these. They are in one sequence, but
        where the template writes an earlier answer with another end, or with none, a new sequence begins, as in a rollout.
        """
        sequences: list[tuple[list[int], list[bool]]] = []
        pending: list[ChatMessage] = []
        for number, message in enumerate(messages):
            if message.role != "assistant":
                pending.append(message)
                continue
            if not pending:
                raise InputError(
                    f"messages.{number}: an assistant message needs a system or user message before it"
                )
            before, mask = sequences[-1] if sequences else ([], [])
            ids = self.extend(before, pending)
            if not sequences or ids[: len(before)] != before:
                sequences.append(([], mask := []))
            response = self._response(message, last=number == len(messages) - 1)
            mask += [False] * (len(ids) - len(mask)) + [True] * len(response)
            sequences[-1] = [*ids, *response], mask
            pending = []
        if pending or not sequences:
            raise InputError("messages: the last message of a demonstration must be an assistant's")
        return sequences

    def _demand_embedded(self) -> None:
        """Raise WeightsError if the chat template writes tokens that the tokenizer has and the model has not."""
        borders = self._borders
        for token in encode(self._live, borders.opened + borders.closing):
            if token >= self.vocab_size:
                raise WeightsError(
                    f"chat template: it writes {self._live.id_to_token(token)!r}, id {token}, expected ids below {self.vocab_size}: "
                    "vocab_size of config.json; the weights have no row for it (resize the model's embedding, or take the "
                    "template of the model)"
                )

    def demand_turns(self, *, system: bool = False, tools: bool = False) -> None:
        """Raise InputError if the template cannot add a turn, token by token, to a conversation with a system message or tools."""
        if system and self.refuses_system:
            raise InputError(
                f"messages: a second turn after a system message: {self.refuses_system}; put its text into the first user "
                "message, or serve another model"
            )
        if tools and self._refuses_tools:
            raise InputError(
                f"tools: a second turn: {self._refuses_tools}; leave them out, or serve another model"
            )

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text; strings of control tokens stay text."""
        literal: list[str] = []
        return self._encode(self._guard(text, literal), literal)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return decode(self._live, ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token inside of a text; they may be a part of a character."""
        return self._texts.bytes_of(token)

    def _border(
        self,
        new_messages: Sequence[ChatMessage],
        literal: list[str],
        generation_prompt: bool = True,
    ) -> Border:
        shown = self._shown(new_messages, literal)
        return self._borders.between(
            shown, self._behind(literal), self.eos_ids, generation_prompt=generation_prompt
        )

    def _response(self, message: ChatMessage, *, last: bool) -> list[int]:
        """Return the ids with which a model would write an answer, with the token that ends it."""
        literal: list[str] = []
        lead = self._borders.lead(last=last)
        text = lead + self._guard(_text_of(message), literal)
        return [*self._encode(text, literal, behind=self._borders.opened), *self._answer_end]

    @cached_property
    def _answer_end(self) -> list[int]:
        """The ids from the end of an answer's text to the token that ends the answer."""
        user = [ChatMessage(role="user", content=".")]
        for border in (self._borders.last(self._behind([]), self.eos_ids), self._border(user, [])):
            if border.end is not None:
                return [*border.ids[: border.end + 1]]
        if not self.eos_ids:
            raise InputError(
                "the model folder names no token that ends an answer; expected eos_token_id in generation_config.json"
            )
        return [self.eos_ids[0]]

    def _shown(self, messages: Sequence[ChatMessage], literal: list[str]) -> list[dict[str, Any]]:
        """Return messages as templates take them. Control strings in contents become placeholders that index `literal`."""
        return [{"role": m.role, "content": self._content(m, literal)} for m in messages]

    def _fill(self, **fields: Any) -> str:
        template = self._tool_template if fields.get("tools") else self._template
        # transformers gives `tools` and `documents` to every template
        return fill(template, **{"tools": None, "documents": None, **fields, **self._variables})

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

    def _encode(self, text: str, literal: Sequence[str], *, behind: str = "") -> list[int]:
        """Return the ids of a template's text; `behind` is a text before it whose ids are not returned."""
        _demand_short(text)
        ids: list[int] = []
        for number, piece in enumerate(_PLACEHOLDER.split(text)):
            before = (behind or (_BEFORE if ids else "")) if self._adds_space else ""
            if number % 2:
                ids += self._inert(literal[int(piece)], before)
            elif piece:
                ids += encode_behind(self._live, piece, before)
            behind = ""
        return ids

    def _behind(self, literal: Sequence[str]) -> Callable[[str], list[int]]:
        """Return the encoder of text that stands behind an answer."""
        return lambda text: self._encode(text, literal, behind=_BEFORE)

    def _inert(self, text: str, before: str) -> list[int]:
        """Return ids of a control token's string, none of which is a control token."""
        ids = encode_behind(self._plain, text, before)
        if self._control_ids.isdisjoint(ids):
            return ids
        if self._unknown is not None:  # a vocabulary of whole words knows the marker as a word
            return [self._unknown]
        letters = [i for c in text for i in encode_behind(self._plain, c, before)]
        return [i for i in letters if i not in self._control_ids]

    def _markers(self) -> set[str]:
        """Return the words of the template's own text that look like control tokens."""
        borders = self._borders
        text = borders.before + borders.closing + borders.opened
        words = (self._live.id_to_token(i) for i in encode(self._live, text))
        return {w for w in words if w is not None and _MARKER.fullmatch(w)}


def _text_of(message: ChatMessage) -> str:
    if message.images:
        raise InputError("the message holds an image; expected text only")
    return message.text


def _demand_short(text: str) -> None:
    if len(text) > _LONGEST:
        raise InputError(
            f"messages: given {len(text)} characters of text, expected at most {_LONGEST}: no context is longer; send less"
        )
