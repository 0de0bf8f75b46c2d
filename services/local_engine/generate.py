"""POST /generate: from a body to sequences, and from sequences to SGLang's replies."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.images import decode_images, place_images
from services.local_engine.request import LARGE, Body, Prompt, explain, parse_sampling, read_json
from services.local_engine.sequence import Scored, Sequence, Top
from triforge.errors import InputError, PolicyError
from triforge.web.bodies import off_loop
from triforge.web.server import EventStream, unless_gone

_IGNORED = frozenset({
    "priority", "extra_key", "session_id", "routed_dp_rank", "model", "background", "log_metrics",
})  # fmt: skip
_WHOLE = frozenset({"text", "input_ids", "stream"})
_UNKNOWN = 65_536  # bytes of a body that comes in pieces
_Score = list[float | int | None]


class _PromptFields(Body):
    """The fields of each prompt: one value for all of them, or a list with one for each prompt."""

    rid: str = Field(default_factory=lambda: uuid.uuid4().hex)
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: Annotated[int, Field(ge=0)] = 0
    lora_path: str | None = None
    sampling_params: Any = None
    image_data: Any = None


def _prompts_of(engine: Engine, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """Return the prompts as ids, and whether the request is a batch."""
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if (text is None) == (ids is None):
        raise InputError("expected exactly one of text and input_ids")
    if text is not None:
        texts = text if isinstance(text, list) else [text]
        if not texts or not all(isinstance(t, str) for t in texts):
            raise InputError("text must be a string or a non-empty list of strings")
        return [engine.codec.encode(t) for t in texts], texts is text
    batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    rows = ids if batch else [ids]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(i) is int for i in row):
            raise InputError("input_ids must be a non-empty list of ids, or a list of such lists")
    return rows, batch


def _fields_of(body: dict[str, Any], count: int, *, batch: bool) -> list[_PromptFields]:
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name in _PromptFields.model_fields:
        value = body.get(name)
        if name == "image_data" and not batch:
            value = None if value is None else [value]
        elif name == "rid" and batch and isinstance(value, str):
            value = [f"{value}_{i}" for i in range(count)]
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise InputError(
                f"{name} has {len(values)} entries; expected one for each of {count} prompts"
            )
        for row, own in zip(rows, values, strict=True):
            row[name] = own
    try:
        return [_PromptFields.model_validate(row) for row in rows]
    except ValidationError as error:
        raise InputError(explain(error)) from error


async def _prompt(engine: Engine, ids: list[int], fields: _PromptFields) -> Prompt:
    media, uris = None, fields.image_data or []
    if uris:
        uris = uris if isinstance(uris, list) else [uris]
        images = await asyncio.to_thread(decode_images, engine.model.vision, uris)
        assert engine.model.vision is not None
        ids, media = place_images(engine.model.vision, ids, images)
    return Prompt(
        ids, parse_sampling(fields.sampling_params), fields.rid, fields.return_logprob, fields.logprob_start_len,
        fields.top_logprobs_num, adapter=fields.lora_path, media=media,
    )  # fmt: skip


async def generate(request: Request) -> Response:
    """Answer POST or PUT /generate."""
    engine: Engine = request.app.state.engine
    body = await read_json(request, most=LARGE)
    for name, value in body.items():
        known = name in _WHOLE or name in _IGNORED or name in _PromptFields.model_fields
        if not known and value not in (None, False, [], {}):
            raise InputError(f"{name} is not supported by the local engine")
    size = int(request.headers.get("content-length") or _UNKNOWN)
    rows, many = await off_loop(size, partial(_prompts_of, engine, body))
    sequences: list[Sequence] = []
    for ids, fields in zip(rows, _fields_of(body, len(rows), batch=many), strict=True):
        prompt = await _prompt(engine, ids, fields)
        sequences += engine.build(prompt)
        many = many or prompt.params.n > 1
    if body.get("stream"):
        if many:
            raise InputError("stream: given with several samples, expected one prompt with n = 1")
        updates = engine.stream(sequences[0])
        await anext(updates)  # it begins
        return EventStream(_events(engine, sequences[0], updates), updates)
    await unless_gone(request, engine.generate(sequences))
    for seq in sequences:
        finish = seq.finish or {}
        status = finish.get("status_code")
        if status is not None:  # an abort that carries a status is the request's failure
            raise (InputError if status == 400 else PolicyError)(str(finish.get("message")))
    results = [result_of(seq, engine) for seq in sequences]
    return JSONResponse(results if many else results[0])


async def _events(
    engine: Engine, seq: Sequence, updates: AsyncGenerator[None, None]
) -> AsyncGenerator[str, None]:
    sent: tuple[int, bool] | None = None  # tokens, and whether it goes on
    async with aclosing(updates):
        async for _ in updates:
            length, finish = seq.snapshot()
            if (length, finish is None) not in (sent, (0, True)):
                result = result_of(seq, engine, first=sent is None)
                goes_on = result["meta_info"]["finish_reason"] is None
                sent = len(result["output_ids"]), goes_on
                yield f"data: {json.dumps(result)}\n\n"
    yield "data: [DONE]\n\n"


def result_of(seq: Sequence, engine: Engine, *, first: bool = True) -> dict[str, Any]:
    """Return a result of /generate. Only a finished one has the versions of its tokens, and only the `first` its time."""
    length, finish = seq.snapshot()
    output, version = seq.output[:length], engine.scheduler.version
    meta: dict[str, Any] = {
        "id": seq.rid,
        "finish_reason": finish,
        "prompt_tokens": len(seq.ids),
        "weight_version": version,
        "num_retractions": seq.retractions,
    }
    if seq.prompt.return_logprob:
        meta |= _logprobs(seq, output)
    meta |= {
        "reasoning_tokens": 0,
        "completion_tokens": length,
        "cached_tokens": seq.cached,
        "cached_tokens_details": {"device": seq.cached, "host": 0} if seq.cached else None,
        "dp_rank": None,
    }
    if finish is not None:
        spans = seq.weight_spans(length, version)
        meta["weight_version"], meta["weight_versions"] = spans[-1]["version"], spans
        meta["e2e_latency"] = time.perf_counter() - seq.arrived
    if first:
        meta["response_sent_to_client_ts"] = time.time()
    return {
        "text": _text_of(seq, output, finish, engine.codec),
        "output_ids": output,
        "meta_info": meta,
    }


def _text_of(
    seq: Sequence, output: list[int], finish: dict[str, Any] | None, codec: TextCodec
) -> str:
    """Return the text so far; that of an unfinished output holds nothing that more tokens could change or cut off."""
    if finish is None:
        return codec.growing_text(output, seq.prompt.params.stop)
    return codec.final_text(output, finish.get("matched"))


def _logprobs(seq: Sequence, output: list[int]) -> dict[str, Any]:
    length = len(output)
    fields: dict[str, Any] = {
        "input_token_logprobs": _scores(seq.input_scores),
        "output_token_logprobs": _scores(zip(seq.logprobs[:length], output, strict=True)),
        "output_token_logprobs_length": length,
    }
    if seq.prompt.top_logprobs_num > 0:
        fields["input_top_logprobs"] = _tops(seq.input_top)
        fields["output_top_logprobs"] = _tops(seq.output_top[:length])
    return fields


def _scores(scores: Iterable[Scored]) -> list[_Score]:
    return [[logprob, token, None] for logprob, token in scores]


def _tops(rows: list[Top]) -> list[list[_Score] | None]:
    return [None if row is None else _scores(row) for row in rows]
