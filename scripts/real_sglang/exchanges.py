"""One conversation with an engine over SGLang's HTTP API: every route that triforge uses, in its good and bad turns.

It is played twice: against real SGLang, whose replies are kept in `tests/contract/sglang/*.json`, and against the local
engine, whose replies must have the same fields. Prompts are small ids and answers are held by a regex or cut by length, so
that any tokenizer with at least 128 tokens and an end token can take part.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

Body = dict[str, Any]
Key = Literal["api", "admin", "none"]

PROMPT = [1, 44, 82, 70]
LONG = 4000  # tokens of a request that is stopped from outside; it must outlast a few calls
_GREEDY: Body = {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
_UNTIL_STOPPED: Body = {"max_new_tokens": LONG, "temperature": 0.0, "ignore_eos": True}
_WHOLE: Body = {"input_ids": [PROMPT], "sampling_params": [_UNTIL_STOPPED], "return_logprob": True}


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request and its reply.

    Attributes:
        request: the JSON that was sent; None for no body.
        reply: its JSON; the text if it is none; of a stream the list of its events.
    """

    name: str
    method: str
    path: str
    request: Any
    status: int
    reply: Any
    stream: bool = False


@dataclass(frozen=True, kw_only=True)
class Folders:
    start: Path
    other: Path
    missing: Path


@dataclass
class Conversation:
    """Sends requests and keeps every exchange by its name."""

    client: httpx.AsyncClient
    api_key: str = ""
    admin_key: str = ""
    kept: dict[str, Exchange] = field(default_factory=dict)

    async def ask(
        self,
        name: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        key: Key = "api",
        shown: Any = None,
    ) -> Exchange:
        """One request; `shown` is kept in place of a body that is too long to keep."""
        response = await self.client.request(method, path, json=body, headers=self._headers(key))
        found = Exchange(
            name=name,
            method=method,
            path=path,
            request=body if shown is None else shown,
            status=response.status_code,
            reply=_content(response),
        )
        self.kept[name] = found
        return found

    async def admin(self, name: str, path: str, body: Any = None) -> Exchange:
        return await self.ask(name, path, {} if body is None else body, key="admin")

    async def stream(self, name: str, path: str, body: Body) -> AsyncGenerator[Any, None]:
        """Yield the events of a streamed reply as they come; the exchange is kept when the last one was taken."""
        events: list[Any] = []
        async with self.client.stream(
            "POST", path, json=body, headers=self._headers("api")
        ) as response:
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if not line.startswith("data: ") or data == "[DONE]":
                    continue
                events.append(json.loads(data))
                yield events[-1]
            self.kept[name] = Exchange(
                name=name,
                method="POST",
                path=path,
                request=body,
                status=response.status_code,
                reply=events,
                stream=True,
            )

    def _headers(self, key: Key) -> dict[str, str]:
        word = {"api": self.api_key, "admin": self.admin_key or self.api_key, "none": ""}[key]
        return {"authorization": f"Bearer {word}"} if word else {}


def _content(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return response.text


async def play(talk: Conversation, folders: Folders) -> Mapping[str, Exchange]:
    """Return the whole conversation; afterwards the engine serves `folders.start` as version 3 and is not paused."""
    await _information(talk)
    await _generate(talk)
    await _refused_generations(talk)
    await _pauses(talk, folders)
    await _aborts(talk)
    await _weights(talk, folders)
    await _sessions(talk)
    if talk.api_key:
        await _keys(talk)
    return talk.kept


async def _information(talk: Conversation) -> None:
    for path in ("/ready", "/health", "/model_info", "/v1/models"):
        await talk.ask(path.strip("/").replace("v1/", ""), path, method="GET")
    await talk.ask("unknown_route", "/nothing", method="GET")


async def _generate(talk: Conversation) -> None:
    await talk.admin("flush", "/flush_cache")
    one: Body = {"input_ids": PROMPT, "sampling_params": _GREEDY, "return_logprob": True}
    await talk.ask("generate_ids", "/generate", one)
    await talk.ask(
        "generate_text", "/generate", {"text": "take the cup", "sampling_params": _GREEDY}
    )
    scored = {**one, "logprob_start_len": 0, "top_logprobs_num": 2}
    await talk.ask("generate_scored", "/generate", scored)
    await talk.ask("generate_n", "/generate", {**one, "sampling_params": {**_GREEDY, "n": 2}})
    held: Body = {"max_new_tokens": 8, "temperature": 0.0, "regex": "abcab"}
    batch: Body = {
        "input_ids": [PROMPT, PROMPT[:3]],
        "sampling_params": [
            {**held, "stop_token_ids": [2]},
            {**held, "max_new_tokens": 4, "regex": "[a-z]{99}"},
        ],
        "return_logprob": True,
    }
    await talk.ask("generate_batch", "/generate", batch)
    stopped = {**one, "sampling_params": {**held, "stop": ["ca"]}}
    await talk.ask("generate_stop_string", "/generate", stopped)
    form: Body = {"max_new_tokens": 8, "temperature": 0.0, "json_schema": '{"const": "ab"}'}
    await talk.ask("generate_json", "/generate", {**one, "sampling_params": form})
    await _last_tokens(talk, one, held, form)
    named = {"input_ids": [PROMPT], "rid": ["a-name"], "sampling_params": [_GREEDY]}
    await talk.ask("generate_named", "/generate", named)
    async with aclosing(
        talk.stream("generate_stream", "/generate", {**one, "stream": True})
    ) as events:
        async for _ in events:
            pass


async def _last_tokens(talk: Conversation, one: Body, held: Body, form: Body) -> None:
    """Answers that end with the last token that they may have."""
    whole = len(talk.kept["generate_batch"].reply[0]["output_ids"])
    cut = len(talk.kept["generate_stop_string"].reply["output_ids"])
    closed = len(talk.kept["generate_json"].reply["output_ids"])
    ending: dict[str, Body] = {
        "generate_end_last": {**held, "stop_token_ids": [2], "max_new_tokens": whole},
        "generate_stop_string_last": {**held, "stop": ["ca"], "max_new_tokens": cut},
        "generate_regex_last": {**held, "max_new_tokens": whole - 1},
        "generate_json_last": {**form, "max_new_tokens": closed - 1},
        "generate_special_stop": {**held, "stop": ["<|im_end|>"], "ignore_eos": True},
    }
    for name, params in ending.items():
        await talk.ask(name, "/generate", {**one, "sampling_params": params})


async def _refused_generations(talk: Conversation) -> None:
    models = talk.kept["models"].reply
    context = models["data"][0]["max_model_len"]
    refused: dict[str, Body] = {
        "generate_nothing": {"sampling_params": _GREEDY},
        "generate_empty": {"input_ids": [], "sampling_params": _GREEDY},
        "generate_unknown_parameter": {"input_ids": PROMPT, "sampling_params": {"nonsense": 1}},
        "generate_bad_temperature": {"input_ids": PROMPT, "sampling_params": {"temperature": -1.0}},
        "generate_bad_regex": {"input_ids": PROMPT, "sampling_params": {"regex": "("}},
        "generate_over_context": {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": context}},
    }  # fmt: skip
    for name, body in refused.items():
        await talk.ask(name, "/generate", body)
    await talk.ask(
        "generate_long_prompt",
        "/generate",
        {"input_ids": [1] * (context + 1), "sampling_params": _GREEDY},
        shown={"input_ids": f"{context + 1} times 1", "sampling_params": _GREEDY},
    )


async def _pauses(talk: Conversation, folders: Folders) -> None:
    """Two requests that live through two kinds of pause, with a weight update in each, until the third kind ends them."""
    body: Body = {
        "input_ids": PROMPT,
        "sampling_params": _UNTIL_STOPPED,
        "return_logprob": True,
        "stream": True,
        "rid": "long",
    }
    whole = asyncio.create_task(talk.ask("generate_across_versions", "/generate", _WHOLE))
    events = talk.stream("generate_stream_across_versions", "/generate", body)
    async with aclosing(events):
        await anext(events)
        await talk.admin("pause_in_place", "/pause_generation", {"mode": "in_place"})
        await talk.admin("flush_refused", "/flush_cache")
        update: Body = {"model_path": str(folders.other), "weight_version": "1"}
        flushing, keeping = update | {"flush_cache": True}, update | {"flush_cache": False}
        await talk.admin("update_in_place_not_flushed", "/update_weights_from_disk", flushing)
        await talk.admin("update_in_place", "/update_weights_from_disk", keeping)
        await talk.admin("continue", "/continue_generation")
        await _a_token_of(events, "1")
        await talk.admin("pause_retract", "/pause_generation", {"mode": "retract"})
        await talk.admin("flush_while_retracted", "/flush_cache")
        back = {"model_path": str(folders.start), "weight_version": "2", "flush_cache": True}
        await talk.admin("update_retracted", "/update_weights_from_disk", back)
        await talk.admin("continue_retracted", "/continue_generation")
        await _a_token_of(events, "2")
        await talk.admin("pause_abort", "/pause_generation", {"mode": "abort"})
        async for _ in events:
            pass
    await talk.admin("continue_aborted", "/continue_generation")
    await _ended(talk, whole)
    await talk.admin("pause_unknown_mode", "/pause_generation", {"mode": "nonsense"})


async def _ended(talk: Conversation, request: asyncio.Task[Exchange]) -> None:
    """Abort a request until it has ended: on a starved machine it may not have arrived when it was first aborted."""
    await asyncio.wait([request], timeout=0.2)
    while not request.done():
        await talk.admin("abort_both", "/abort_request", {"abort_all": True})
        await asyncio.wait([request], timeout=0.2)


async def _a_token_of(events: AsyncIterator[Any], version: str) -> None:
    """Take events until one was written by that weight version."""
    async for event in events:
        if event["meta_info"]["weight_version"] == version:
            return


async def _aborts(talk: Conversation) -> None:
    one: Body = {"input_ids": PROMPT, "sampling_params": _UNTIL_STOPPED, "return_logprob": True}
    for name, order in (("abort_one", {"rid": "abort_one"}), ("abort_all", {"abort_all": True})):
        body = {**one, "stream": True, "rid": name}  # SGLang aborts a streamed name again 2 s later
        async with aclosing(talk.stream(f"generate_{name}", "/generate", body)) as events:
            await anext(events)
            await talk.admin(name, "/abort_request", order)
            async for _ in events:
                pass
    await talk.admin("abort_unknown", "/abort_request", {"rid": "unknown"})
    whole = asyncio.create_task(talk.ask("generate_aborted", "/generate", _WHOLE))
    body = {**one, "stream": True}
    async with aclosing(talk.stream("generate_abort_both", "/generate", body)) as events:
        await anext(events)  # by now the one that was asked for before has its first token as well
        await talk.admin("abort_both", "/abort_request", {"abort_all": True})
        async for _ in events:
            pass
    await _ended(talk, whole)


async def _weights(talk: Conversation, folders: Folders) -> None:
    path = "/update_weights_from_disk"
    other, start = str(folders.other), str(folders.start)
    await talk.admin("update_from_disk", path, {"model_path": other, "weight_version": "3", "flush_cache": True})  # fmt: skip
    missing = {"model_path": str(folders.missing), "weight_version": "9", "flush_cache": True}
    await talk.admin("update_missing_folder", path, missing)
    await talk.admin("update_without_path", path, {"weight_version": "9"})
    await talk.ask("model_info_updated", "/model_info", method="GET")
    name = "/get_weights_by_name"
    norm = {"name": "model.norm.weight", "truncate_size": 3}
    await talk.admin("weights_vector", name, norm)
    await talk.admin("weights_matrix", name, {**norm, "name": "model.layers.0.mlp.down_proj.weight", "truncate_size": 1})  # fmt: skip
    await talk.admin("weights_unknown", name, {**norm, "name": "model.nonsense"})
    await talk.admin("update_back", path, {"model_path": start})
    await talk.admin("rename_version", "/update_weight_version", {"new_version": "3", "abort_all_requests": False})  # fmt: skip


async def _sessions(talk: Conversation) -> None:
    names = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[3]]}
    await talk.admin("distributed_without_session", "/update_weights_from_distributed", names)
    await talk.admin("session_end_without", "/end_weight_update")
    await talk.admin("session_begin", "/begin_weight_update")
    await talk.admin("session_begin_twice", "/begin_weight_update")
    await talk.admin("session_end", "/end_weight_update")
    await talk.admin("group_destroy_unknown", "/destroy_weights_update_group", {"group_name": "unknown"})  # fmt: skip


async def _keys(talk: Conversation) -> None:
    one: Body = {"input_ids": PROMPT, "sampling_params": _GREEDY}
    await talk.ask("generate_without_key", "/generate", one, key="none")
    await talk.ask("generate_with_admin_key", "/generate", one, key="admin")
    await talk.ask("model_info_without_key", "/model_info", method="GET", key="none")
    await talk.ask("health_without_key", "/health", method="GET", key="none")
    await talk.ask("ready_without_key", "/ready", method="GET", key="none")
    for path in (
        "/flush_cache",
        "/pause_generation",
        "/abort_request",
        "/update_weights_from_disk",
    ):
        word = path.strip("/").split("_")[0]
        await talk.ask(f"{word}_with_api_key", path, {}, key="api")
