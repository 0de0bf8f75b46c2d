"""Chat templates in the formats of published model families, with small tokenizers of the same kinds."""

# ruff: noqa: RUF001 - a family writes wide bars

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

_WORDS = ("user", "assistant", "system", "the", "and", "er", "an", "in", "##", "\n\n", "one")


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        template: the chat template.
        control: control tokens; the first is unknown, the second begins a text.
        eos: tokens that the configuration names as ends.
        end: the token with which the model ends an answer.
        call_end: the same after a call of a tool; `end` by default.
        lead: text that the model writes before an answer.
        tail: the same behind it.
        call: the text of an answer with one call, None without tools.
        thoughts: what becomes of the thoughts of earlier answers; None if the model writes none.
        refuses: what it cannot do in a way that grows token by token.
    """

    template: str
    control: Sequence[str]
    eos: Sequence[str]
    end: str
    call_end: str = ""
    lead: str = ""
    tail: str = ""
    call: Callable[[str, str, Mapping[str, str]], str] | None = None
    thoughts: Literal["kept", "dropped"] | None = None
    refuses: Sequence[str] = ()
    kind: Literal["bytes", "prepend", "metaspace"] = "bytes"
    tool_template: str = ""
    words: Sequence[str] = ()

    def write(self, folder: Path) -> Path:
        """Write the family's model folder, without weights."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = _TOKENIZERS[self.kind]()
        tokenizer.add_special_tokens(
            [AddedToken(c, special=True, normalized=False) for c in self.control]
        )
        tokenizer.add_tokens([AddedToken(w, special=False, normalized=False) for w in self.words])
        tokenizer.save(str(folder / "tokenizer.json"))
        templates: Any = self.template
        if self.tool_template:
            templates = [
                {"name": "default", "template": self.template},
                {"name": "tool_use", "template": self.tool_template},
            ]
        ids = [tokenizer.token_to_id(token) for token in self.eos]
        files = {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": self.control[0],
                "bos_token": self.control[1],
                "eos_token": self.eos[0],
                "chat_template": templates,
            },
            "generation_config.json": {"eos_token_id": ids},
            "config.json": {"model_type": "llama", "vocab_size": tokenizer.get_vocab_size()},
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return folder


# ---- tokenizers ----


@cache
def _merges() -> list[tuple[str, str]]:
    merges = []
    for word in _WORDS:
        merges += [(word[:size], word[size]) for size in range(1, len(word))]
    return list(dict.fromkeys(merges))


def _vocabulary(alphabet: Sequence[str], merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    return {token: place for place, token in enumerate(dict.fromkeys(tokens))}


def _bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [pair for pair in _merges() if "\n" not in "".join(pair)]
    tokenizer = Tokenizer(models.BPE(_vocabulary(alphabet, merges), merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece() -> Tokenizer:
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet += [c for c in string.printable if not c.isspace()] + ["▁"]
    merges = [pair for pair in _merges() if "\n" not in "".join(pair)]
    merges += [("▁", "user"), ("▁", "the"), ("▁", "a"), ("▁", "one"), ("▁", "▁")]
    model = models.BPE(_vocabulary(alphabet, merges), merges, byte_fallback=True)
    tokenizer = Tokenizer(model)
    replace = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*replace, decoders.Strip(" ", 1, 0)])
    return tokenizer


def _prepend() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


_TOKENIZERS = {"bytes": _bytes, "prepend": _prepend, "metaspace": _metaspace}


# ---- templates ----


def turns(
    open: str, close: str, *, bos: str = "", roles: Mapping[str, str] | None = None, gap: str = "",
    prompt: str | None = None, answer_close: str | None = None, strip: bool = False, default_system: str = "",
) -> str:  # fmt: skip
    """Return a template that writes each message as `open` with ROLE in it, the content, and `close`."""
    named = json.dumps(dict(roles or {}))
    content = "m.content | trim" if strip else "m.content"
    first, rest = open.split("ROLE") if "ROLE" in open else (open, "")
    ending = close if answer_close is None else answer_close
    system = ""
    if default_system:
        system = (
            "{% if messages[0].role != 'system' %}{{ " + _text(first) + " + 'system' + "
            + _text(rest + default_system + close) + " }}{% endif %}"
        )  # fmt: skip
    opened = prompt if prompt is not None else None
    generation = (
        _text(opened) if opened is not None
        else _text(first) + " + names.get('assistant', 'assistant') + " + _text(rest.rstrip(gap) if gap else rest)
    )  # fmt: skip
    return (
        "{% set names = " + named + " %}" + ("{{ " + _text(bos) + " }}" if bos else "") + system
        + "{% for m in messages %}{{ " + _text(first) + " + names.get(m.role, m.role) + " + _text(rest)
        + " + (" + content + ") }}{% if m.role == 'assistant' %}{{ " + _text(ending) + " }}{% else %}{{ "
        + _text(close) + " }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ " + generation + " }}{% endif %}"
    )  # fmt: skip


def _text(text: str) -> str:
    return json.dumps(text)


def _hermes_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{content}\n<tool_call>\n{call}\n</tool_call>"


_HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}"
    "{{ 'Tools:' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}THOUGHTS"
    '{% for call in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' '
    "+ (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}PROMPT{% endif %}"
)
_KEPT = "{{ m.content }}"
_DROPPED = (
    "{% set content = m.content %}{% if '</think>' in content and loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}"
)
# Of the newest answer an empty thought is shown where it has none.
_EMPTY = (
    "{% set content = m.content %}{% if '</think>' in content %}{% if loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% elif loop.last %}{% set content = '<think>\n\n</think>\n\n' + content %}{% endif %}{{ content }}"
)


def _chatml(thoughts: str = _KEPT, prompt: str = "") -> str:
    return _HERMES.replace("THOUGHTS", thoughts).replace("PROMPT", prompt)


def _llama3_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    return json.dumps({"name": name, "parameters": dict(arguments)}, ensure_ascii=False)


_LLAMA3 = (
    "{{ bos_token }}{% if tools or messages[0].role == 'system' %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}"
    "{% for tool in tools or [] %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% elif m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{{ '{\"name\": \"' + m.tool_calls[0].function.name + '\", \"parameters\": ' + (m.tool_calls[0].function.arguments | tojson) + '}<|eot_id|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}"
    "{% else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + (m.content | trim) + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

_LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)

# The system message stands before the last user message.
_MISTRAL1 = (
    "{{ bos_token }}{% set ns = namespace(system='', rest=messages) %}"
    "{% if messages[0].role == 'system' %}{% set ns.system = messages[0].content + '\n\n' %}{% set ns.rest = messages[1:] %}{% endif %}"
    "{% for m in ns.rest %}{% if m.role == 'user' %}{{ '[INST] ' + (ns.system if loop.last else '') + m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{% else %}{{ raise_exception('unknown role ' + m.role) }}{% endif %}{% endfor %}"
)
# The tools stand before the last user message.
_MISTRAL3 = (
    "{{ bos_token }}{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS]' + (m.tool_calls | tojson) + eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"
)


def _mistral_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps(dict(arguments), ensure_ascii=False)
    return f"[TOOL_CALLS]{name}[ARGS]{call}"


_MISTRAL_TEKKEN = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{% endif %}"
    "{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}{% for call in m.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('ids of calls have nine characters') }}{% endif %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"
)


def _harmony_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps(dict(arguments), ensure_ascii=False)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{call}"


# Answers end with <|return|>, in a history with <|end|>; results of tools need the call before them.
_HARMONY = (
    "{{ '<|start|>system<|message|>You are of help.' }}{% if tools %}{{ ' Tools: ' + (tools | tojson) }}{% endif %}{{ '<|end|>' }}"
    "{% set ns = namespace(called='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ '<|start|>developer<|message|>' + m.content + '<|end|>' }}"
    "{% elif m.role == 'user' %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}{% set ns.called = m.tool_calls[0].function.name %}"
    "{{ '<|start|>assistant<|channel|>commentary to=functions.' + ns.called + ' <|constrain|>json<|message|>' "
    "+ (m.tool_calls[0].function.arguments | tojson) + '<|call|>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% elif m.role == 'tool' %}{% if not ns.called %}{{ raise_exception('a tool answers, but no call stands before it') }}{% endif %}"
    "{{ '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' + (m.content | tojson) + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


def _glm4_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    return f"{name}\n{json.dumps(dict(arguments), ensure_ascii=False)}"


_GLM4 = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\nTools: ' + (tools | tojson) }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|observation|>\n' + m.content }}"
    "{% elif m.tool_calls %}{{ '<|assistant|>' + m.tool_calls[0].function.name + '\n' + (m.tool_calls[0].function.arguments | tojson) }}"
    "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _glm45_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"\n{content}\n<tool_call>{name}\n{pairs}</tool_call>"


_GLM45 = (
    "{{ '[gMASK]<sop>' }}{% if tools %}{{ '<|system|>\nTools: ' + (tools | tojson) }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '\n<tool_call>' + call.function.name + '\n' }}{% for key, value in call.function.arguments.items() %}"
    "{{ '<arg_key>' + key + '</arg_key>\n<arg_value>' + value + '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}"
    "{% elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% else %}{{ '<|' + m.role + '|>\n' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _deepseek_call(content: str, name: str, arguments: Mapping[str, str]) -> str:
    call = json.dumps(dict(arguments), ensure_ascii=False)
    return f"{content}<｜calls｜><｜call｜>{name}<｜sep｜>{call}<｜/call｜><｜/calls｜>"


_DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if tools %}{{ '\n\nTools: ' + (tools | tojson) }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% elif m.role == 'assistant' %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<｜Assistant｜>' }}{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% if m.tool_calls %}{{ '<｜calls｜>' }}{% for call in m.tool_calls %}"
    "{{ '<｜call｜>' + call.function.name + '<｜sep｜>' + call.function.arguments_text + '<｜/call｜>' }}{% endfor %}{{ '<｜/calls｜>' }}{% endif %}"
    "{{ eos_token }}{% elif m.role == 'tool' %}{{ '<｜output｜>' + m.content + '<｜/output｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<｜Assistant｜>' }}PROMPT{% endif %}"
).replace("call.function.arguments_text", "(call.function.arguments | tojson)")  # fmt: skip

_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TOOL_WORDS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_LLAMA3_CONTROL = (
    "<|unk|>", "<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>",
)  # fmt: skip
_GLM_CONTROL = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
)  # fmt: skip
_DEEPSEEK_CONTROL = (
    "<unk>", "<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>", "<｜calls｜>", "<｜/calls｜>", "<｜call｜>", "<｜/call｜>",
    "<｜sep｜>", "<｜output｜>", "<｜/output｜>",
)  # fmt: skip
_S = ("<unk>", "<s>", "</s>")


def _plain(template: str, end: str, *control: str, **more: Any) -> Family:
    named = dict.fromkeys(("<unk>", "<s>", end, *control))
    return Family(template, tuple(named), more.pop("eos", (end,)), end, **more)


FAMILIES: dict[str, Family] = {
    "qwen2.5": Family(_chatml(), _IM, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", call=_hermes_call, words=_TOOL_WORDS),
    "qwen3": Family(
        _chatml(_EMPTY), _IM, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", call=_hermes_call, thoughts="dropped", words=_TOOL_WORDS,
    ),
    "qwq": Family(
        _chatml(_DROPPED, "{{ '<think>\n' }}"), _IM, ("<|im_end|>",), "<|im_end|>", call=_hermes_call, thoughts="dropped", words=_TOOL_WORDS,
    ),
    "thoughts-kept": Family(_chatml(), _IM, ("<|im_end|>",), "<|im_end|>", call=_hermes_call, thoughts="kept", words=_TOOL_WORDS),
    "qwen2.5-base": Family(_chatml(), _IM, ("<|endoftext|>",), "<|endoftext|>", call=_hermes_call, words=_TOOL_WORDS),
    "named-templates": Family(
        turns("<|im_start|>ROLE\n", "<|im_end|>\n"), _IM, ("<|im_end|>",), "<|im_end|>", call=_hermes_call, words=_TOOL_WORDS,
        tool_template=_chatml(),
    ),
    "smollm2": Family(
        turns("<|im_start|>ROLE\n", "<|im_end|>\n", default_system="You are of help."), _IM, ("<|im_end|>",), "<|im_end|>",
    ),
    "phi-4": _plain(turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>"), "<|im_end|>", "<|im_start|>", "<|im_sep|>"),
    "phi-3": _plain(
        turns("<|ROLE|>\n", "<|end|>\n").replace("{% endfor %}{% if add", "{% endfor %}{% if not add_generation_prompt %}{{ '<|endoftext|>' }}{% endif %}{% if add"),
        "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|endoftext|>", eos=("<|endoftext|>", "<|end|>"),
    ),
    "llama-3": Family(_LLAMA3, _LLAMA3_CONTROL, ("<|eot_id|>", "<|eom_id|>"), "<|eot_id|>", call=_llama3_call),
    "llama-3-eom": Family(_LLAMA3, _LLAMA3_CONTROL, ("<|eot_id|>", "<|eom_id|>"), "<|eot_id|>", call_end="<|eom_id|>", call=_llama3_call),
    "llama-2": Family(_LLAMA2, _S, ("</s>",), "</s>", lead=" ", tail=" ", kind="prepend", refuses=("system",)),
    "llama-2-first": Family(_LLAMA2, _S, ("</s>",), "</s>", lead=" ", tail=" ", kind="metaspace", refuses=("system",)),
    "mistral-1": Family(_MISTRAL1, _S, ("</s>",), "</s>", lead=" ", kind="prepend", refuses=("system",)),
    "mistral-3": Family(
        _MISTRAL3, (*_S, "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ("</s>",), "</s>", kind="metaspace", refuses=("tools",),
    ),
    "mistral-tekken": Family(
        _MISTRAL_TEKKEN,
        (*_S, "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        ("</s>",), "</s>", call=_mistral_call,
    ),
    "gpt-oss": Family(
        _HARMONY, ("<|endoftext|>", "<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        ("<|return|>", "<|endoftext|>", "<|call|>"), "<|return|>", call_end="<|call|>", lead="<|channel|>final<|message|>", call=_harmony_call,
    ),
    "glm-4": Family(
        _GLM4, _GLM_CONTROL, ("<|endoftext|>", "<|user|>", "<|observation|>"), "<|user|>", call_end="<|observation|>", lead="\n", call=_glm4_call,
    ),
    "glm-4.5": Family(
        _GLM45, _GLM_CONTROL, ("<|endoftext|>", "<|user|>", "<|observation|>"), "<|user|>", call_end="<|observation|>", lead="\n",
        call=_glm45_call, words=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "deepseek-v3": Family(_DEEPSEEK.replace("PROMPT", ""), _DEEPSEEK_CONTROL, ("<｜end｜>",), "<｜end｜>", call=_deepseek_call),
    "deepseek-r1": Family(
        _DEEPSEEK.replace("PROMPT", "{{ '<think>\n' }}"), _DEEPSEEK_CONTROL, ("<｜end｜>",), "<｜end｜>", thoughts="dropped", words=("<think>", "</think>"),
    ),
    "gemma": _plain(
        turns("<start_of_turn>ROLE\n", "<end_of_turn>\n", bos="<s>", roles={"assistant": "model"}, strip=True),
        "<end_of_turn>", "<start_of_turn>", eos=("<end_of_turn>",), kind="metaspace",
    ),
    "zephyr": _plain(turns("<|ROLE|>\n", "</s>\n"), "</s>", kind="prepend"),
    "tulu": _plain(turns("<|ROLE|>\n", "\n", answer_close="<|endoftext|>\n", bos="<s>"), "<|endoftext|>"),
    "command-r": _plain(
        turns("<|START|><|ROLE|>", "<|STOP|>", bos="<s>"), "<|STOP|>", "<|START|>", "<|user|>", "<|assistant|>", "<|system|>",
    ),
    "granite": _plain(turns("<|role|>ROLE<|role_end|>", "<|end|>\n"), "<|end|>", "<|role|>", "<|role_end|>"),
    "exaone": _plain(turns("[|ROLE|]", "\n", answer_close="[|endofturn|]\n"), "[|endofturn|]", "[|user|]", "[|assistant|]", "[|system|]"),
    "openchat": _plain(turns("GPT ROLE: ", "<|end_of_turn|>", bos="<s>", gap=" "), "<|end_of_turn|>", kind="prepend", lead=" "),
    "vicuna": _plain(
        turns("ROLE: ", " ", roles={"user": "USER", "assistant": "ASSISTANT", "system": "SYSTEM"}, answer_close="</s>", gap=" "), "</s>",
        kind="prepend", lead=" ",
    ),
    "alpaca": _plain(
        turns("### ROLE:\n", "\n\n", roles={"user": "Instruction", "assistant": "Response"}, answer_close="\n\n"), "</s>", kind="prepend",
    ),
    "alpaca-bytes": _plain(turns("### ROLE:\n", "\n\n", answer_close="\n\n"), "</s>"),
    "no-closing": _plain(turns("<|ROLE|>", ""), "</s>", "<|user|>", "<|assistant|>", "<|system|>"),
    "internlm": _plain(turns("<|im_start|>ROLE\n", "<|im_end|>\n", bos="<s>"), "<|im_end|>", "<|im_start|>", "</s>", kind="metaspace", eos=("</s>", "<|im_end|>")),
    "falcon": _plain(turns("ROLE: ", "\n", gap=" ", answer_close="\n"), "</s>", lead=" "),
}  # fmt: skip
