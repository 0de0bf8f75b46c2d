"""The OpenAI-compatible door: /v1/chat/completions and /v1/models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.local_engine.detokenize import final_text
from services.local_engine.engine import Engine, new_rid
from services.local_engine.request import Prompt, parse_sampling
from services.local_engine.sequence import Scored, Sequence
from triforge.errors import InputError

# OpenAI's name -> SGLang's name
_RENAMED = {
    "temperature": "temperature", "top_p": "top_p", "n": "n", "stop": "stop", "seed": "sampling_seed",
    "max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens",
    # SGLang's additions to the OpenAI request
    "top_k": "top_k", "min_p": "min_p", "min_tokens": "min_new_tokens", "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos", "skip_special_tokens": "skip_special_tokens", "no_stop_trim": "no_stop_trim",
    "regex": "regex", "frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
}  # fmt: skip
_OTHER = frozenset({
    "messages", "model", "stream", "stream_options", "logprobs", "top_logprobs", "response_format", "rid", "user",
    "chat_template_kwargs", "metadata", "store",
})  # fmt: skip


@dataclass(frozen=True)
class ChatRequest:
    """What the answer's shape depends on."""

    id: str
    model: str
    created: int
    logprobs: bool
    stream: bool
    usage: bool


def _grammar(body: dict[str, Any]) -> dict[str, str]:
    form = body.get("response_format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    schema = (form.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
    if not isinstance(schema, dict):
        raise InputError(
            f"response_format is {form!r}; expected type text, json_object, or json_schema with a schema"
        )
    return {"json_schema": json.dumps(schema)}


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: Any = body.get("messages")
    good = isinstance(messages, list) and messages
    if not good or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise InputError("messages must be a non-empty list of objects with role and content")
    flat = []
    for message in messages:
        content: Any = message.get("content")
        if isinstance(content, list):  # parts: only text makes sense to a language model
            parts: list[Any] = [
                p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"
            ]
            if len(parts) != len(content) or not all(isinstance(p, str) for p in parts):
                raise InputError("message content may hold text parts only")
            content = "".join(parts)
        flat.append({**message, "content": content})
    return flat


def parse_chat(engine: Engine, body: Any, served_name: str) -> tuple[list[Sequence], ChatRequest]:
    """Sequences of a chat body.

    Raises:
        InputError: the body is malformed, asks for what this engine does not do, or does not fit.
    """
    if not isinstance(body, dict):
        raise InputError("expected a JSON object")
    for name, value in body.items():
        if name not in _RENAMED and name not in _OTHER and value not in (None, False, [], {}):
            raise InputError(f"{name} is not supported by the local engine")
    raw = {new: body[old] for old, new in _RENAMED.items() if body.get(old) is not None}
    raw.setdefault("max_new_tokens", None)
    params = parse_sampling(raw | _grammar(body))
    text = engine.codec.render_chat(_messages(body), **(body.get("chat_template_kwargs") or {}))
    logprobs = body.get("logprobs") is True
    top = body.get("top_logprobs") or 0
    if type(top) is not int or not 0 <= top <= 20:
        raise InputError(f"top_logprobs is {top!r}; expected an integer in [0, 20]")
    ids = engine.codec.encode(text, special=False)
    rid = body.get("rid") or new_rid()
    prompt = Prompt(ids, params, str(rid), logprobs, -1, top if logprobs else 0)
    options = body.get("stream_options") or {}
    request = ChatRequest(
        id=prompt.rid,
        model=str(body.get("model") or served_name),
        created=int(time.time()),
        logprobs=logprobs,
        stream=body.get("stream") is True,
        usage=bool(isinstance(options, dict) and options.get("include_usage")),
    )
    return engine.build(prompt), request


def _text(engine: Engine, seq: Sequence, length: int, finish: dict[str, Any] | None) -> str:
    params = seq.prompt.params
    return final_text(
        engine.codec,
        seq.output[:length],
        finish.get("matched") if finish else None,
        skip_special=params.skip_special_tokens,
        keep_stop=params.no_stop_trim,
    )


def _scored(engine: Engine, scored: Scored) -> dict[str, Any]:
    logprob, token = scored
    text = engine.codec.decode([token], skip_special=False)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _logprobs(engine: Engine, seq: Sequence) -> dict[str, Any]:
    content = []
    for i, (logprob, token) in enumerate(zip(seq.logprobs, seq.output, strict=True)):
        top = seq.output_top[i] if i < len(seq.output_top) else None
        entry = _scored(engine, (logprob, token))
        entry["top_logprobs"] = [_scored(engine, s) for s in top or []]
        content.append(entry)
    return {"content": content}


def _usage(sequences: list[Sequence]) -> dict[str, Any]:
    prompt = len(sequences[0].ids)
    out = sum(len(seq.output) for seq in sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": sequences[0].cached},
    }


def _finish(seq: Sequence) -> dict[str, Any]:
    finish = seq.finish or {}
    return {"finish_reason": finish.get("type"), "matched_stop": finish.get("matched")}


def completion(engine: Engine, request: ChatRequest, sequences: list[Sequence]) -> dict[str, Any]:
    """The answer of a chat request that is not streamed."""
    choices = [
        {
            "index": i,
            "message": {"role": "assistant", "content": _text(engine, seq, *seq.snapshot())},
            "logprobs": _logprobs(engine, seq) if request.logprobs else None,
            **_finish(seq),
        }
        for i, seq in enumerate(sequences)
    ]
    return {
        "id": request.id,
        "object": "chat.completion",
        "created": request.created,
        "model": request.model,
        "choices": choices,
        "usage": _usage(sequences),
        "metadata": {"weight_version": engine.version},
    }


class Deltas:
    """Cuts growing outputs into chat.completion.chunk objects.

    Args:
        engine: decodes.
        request: the request.
        sequences: its samples.
    """

    def __init__(self, engine: Engine, request: ChatRequest, sequences: list[Sequence]) -> None:
        self._engine, self._request, self._sequences = engine, request, sequences
        self._sent: list[str | None] = [None] * len(sequences)
        self._ended = [False] * len(sequences)

    def take(self) -> Iterator[dict[str, Any]]:
        """The chunks that are due now."""
        for i, seq in enumerate(self._sequences):
            if self._ended[i]:
                continue
            length, finish = seq.snapshot()
            text = _text(self._engine, seq, length, finish)
            if finish is None:
                text = self._safe(seq, text)
            before = self._sent[i]
            delta: dict[str, Any] = {} if before is not None else {"role": "assistant"}
            new = text[len(before or "") :]
            if new or before is None:
                self._sent[i] = text
                yield self._chunk(i, {**delta, "content": new}, {"finish_reason": None})
            if finish is not None:
                self._ended[i] = True
                yield self._chunk(i, {}, _finish(seq))
        if all(self._ended) and self._request.usage:
            yield {**self._head(), "choices": [], "usage": _usage(self._sequences)}

    @staticmethod
    def _safe(seq: Sequence, text: str) -> str:
        """What cannot change any more: no half character at the end, and nothing that may become a stop string."""
        text = text.rstrip("\ufffd")
        hold = max((len(stop) for stop in seq.prompt.params.stop), default=1) - 1
        return text[: len(text) - hold] if hold else text

    def _head(self) -> dict[str, Any]:
        r = self._request
        return {
            "id": r.id,
            "object": "chat.completion.chunk",
            "created": r.created,
            "model": r.model,
        }

    def _chunk(self, index: int, delta: dict[str, Any], finish: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._head(),
            "choices": [{"index": index, "delta": delta, "logprobs": None, **finish}],
        }


def model_list(engine: Engine, served_name: str) -> dict[str, Any]:
    """GET /v1/models."""
    model = {
        "id": served_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "triforge",
        "root": served_name,
        "parent": None,
        "max_model_len": engine.longest,
    }
    return {"object": "list", "data": [model]}
