"""A fake engine that speaks the part of SGLang's HTTP API that we use.

It is a plain ASGI callable: give it to `httpx.ASGITransport`, or to any ASGI server. It has no model. Its answers are a
function of the prompt, one token at a time, so that a pause or a change of weights happens in the middle of an answer
as it does in a real engine. Shapes follow the recordings in the contract tests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from triforge.testing.fake_adapters import FakeAdapters
from triforge.testing.fake_weights import FakeWeights
from triforge.testing.fakes import FAKE_LOGPROB

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply = tuple[int, Any]


def echo(ids: Sequence[int], params: dict[str, Any]) -> list[int]:
    """Say the last token of the prompt, then the first stop token if there is one."""
    ends = params.get("stop_token_ids") or []
    return [ids[-1], *ends[:1]]


@dataclass(eq=False)
class FakeEngine:
    """One engine.

    Args:
        answer: the tokens to say to a prompt, given its ids and its sampling_params; cut at max_new_tokens.
        decode: text of tokens; None writes the ids as words.
        version: weight version at the start.
        model_path: folder at the start.
        api_key: bearer token of /generate, /model_info and /server_info; empty asks for none.
        admin_api_key: bearer token of the pause and weight routes; empty takes `api_key`.
        fail_next: so many generate calls are answered with `fail_status`.
        fail_status: status of a failing call.
        fail_message: what a failing call says.
        pause_s: seconds between two tokens.
        wait_at: at this token an answer waits until the weights change, or a pause aborts it; -1 never.
        gone: nothing listens any more.
        silent: connections are taken and nothing is ever answered.
        starting: /ready says 503.
        refuse: folders that are answered with 400, as if a tensor had the wrong shape.
        refuse_tensors: weights that come over HTTP are answered with 400.
        lie: version that /model_info says instead of the true one.
        nonsense: what /generate answers instead of the truth.

    Attributes:
        calls: path and body of every call, oldest first.
        running: answers being written now.
        paused: whether answers are held.
        reached: set when an answer waits at `wait_at`.
        aborted: calls of /abort_request.
        weights: the tensors it holds; `weights.stale` makes it lie about them.
        adapters: those it holds; `adapters.stale` makes it lie about them.
    """

    answer: Callable[[Sequence[int], dict[str, Any]], Sequence[int]] = echo
    decode: Callable[[Sequence[int]], str] | None = None
    version: str = "0"
    model_path: str = "/models/fake"
    api_key: str = ""
    admin_api_key: str = ""
    fail_next: int = 0
    fail_status: int = 500
    fail_message: str = "the fake engine was told to fail"
    pause_s: float = 0.0
    wait_at: int = -1
    gone: bool = False
    silent: bool = False
    starting: bool = False
    refuse: set[str] = field(default_factory=set)
    refuse_tensors: bool = False
    lie: str | None = None
    nonsense: Any = None
    calls: list[tuple[str, Any]] = field(default_factory=list)
    running: int = 0
    paused: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: int = 0
    weights: FakeWeights = field(default_factory=FakeWeights)
    adapters: FakeAdapters = field(default_factory=FakeAdapters)
    _go: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._go.set()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if self.gone:
            raise httpx.ConnectError("the fake engine is gone")
        raw = b""
        more = True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        path = scope["path"]
        body = json.loads(raw) if raw else {}
        self.calls.append((path, body))
        if self.silent:
            await asyncio.Event().wait()
        status, found = await self._route(path, body, dict(scope["headers"]))
        if isinstance(found, AsyncIterator):
            await _send_events(found, send)
            return
        text = isinstance(found, str)
        content = found.encode() if text else json.dumps(found).encode()
        headers = [(b"content-type", b"text/plain" if text else b"application/json")]
        if status in (429, 503):
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def paths(self) -> list[str]:
        """The paths of all calls, oldest first."""
        return [path for path, _ in self.calls]

    async def _route(self, path: str, body: dict[str, Any], headers: dict[bytes, bytes]) -> Reply:
        routes: dict[str, Callable[[dict[str, Any]], Awaitable[Reply]]] = {
            "/ready": self._ready,
            "/health": self._ready,
            "/model_info": self._model_info,
            "/generate": self._generate,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/update_weights_from_disk": self._update,
            "/abort_request": self._abort,
            "/server_info": self._server_info,
            "/get_weights_by_name": self._show,
            "/begin_weight_update": self._begin,
            "/end_weight_update": self._end,
            "/update_weights_from_tensor": self._take,
            "/load_lora_adapter": self.adapters.load,
            "/unload_lora_adapter": self.adapters.unload,
            "/v1/models": self.adapters.cards,
        }
        route = routes.get(path)
        if route is None:
            return 404, {"detail": "Not Found"}
        open_to_all = path in ("/ready", "/health")
        of_the_api = path in ("/generate", "/model_info", "/server_info")
        key = self.api_key if of_the_api else self.admin_api_key or self.api_key
        if key and not open_to_all and headers.get(b"authorization") != f"Bearer {key}".encode():
            return 401, {"error": "Unauthorized"}
        return await route(body)

    async def _ready(self, _: dict[str, Any]) -> Reply:
        return (503, "") if self.starting or self.paused else (200, "")

    async def _model_info(self, _: dict[str, Any]) -> Reply:
        shown = self.version if self.lie is None else self.lie
        return 200, {
            "model_path": self.model_path,
            "tokenizer_path": self.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": shown,
        }

    async def _generate(self, body: dict[str, Any]) -> Reply:
        if self.fail_next > 0:
            self.fail_next -= 1
            return self.fail_status, {"error": {"message": self.fail_message}}
        if self.nonsense is not None:
            return 200, self.nonsense
        rows = body.get("input_ids")
        if not isinstance(rows, list) or not rows:
            return 400, {"error": {"message": "the fake engine wants input_ids"}}
        refused = self.adapters.missing(body.get("lora_path"))
        if refused is not None:
            return refused
        params = body.get("sampling_params") or {}
        single = not isinstance(rows[0], list)
        if single and body.get("stream"):
            return 200, self._write(rows, params)
        if single and params.get("n", 1) == 1:
            found = await self._say(rows, params)
            if body.get("logprob_start_len") == 0:
                known = self.adapters.prompt_logprobs(rows, body.get("lora_path"))
                found["meta_info"]["input_token_logprobs"] = known
            return 200, found
        rows = [rows] if single else rows
        each = params if isinstance(params, list) else [params] * len(rows)
        said = [
            self._say(row, p)
            for row, p in zip(rows, each, strict=True)
            for _ in range(p.get("n", 1))
        ]
        return 200, list(await asyncio.gather(*said))

    async def _say(self, ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        return [result async for result in self._write(ids, params)][-1]

    async def _write(
        self, ids: list[int], params: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The answer after each token, and once more when it has ended."""
        wanted = list(self.answer(ids, params))
        limit = params.get("max_new_tokens", 128)
        output: list[int] = []
        spans: list[dict[str, Any]] = []
        aborted = False
        self.running += 1
        self._idle.clear()
        try:
            for token in wanted[:limit]:
                await asyncio.sleep(self.pause_s)
                if len(output) == self.wait_at:
                    self.reached.set()
                    await self._changed.wait()
                await self._go.wait()
                if self.paused == "abort":
                    aborted = True
                    break
                if not spans or spans[-1]["version"] != self.version:
                    spans.append({"version": self.version, "start": len(output), "end": 0})
                output.append(token)
                spans[-1]["end"] = len(output)
                yield self._result(ids, output, spans, None, params)
        finally:
            self.running -= 1
            if self.running == 0:
                self._idle.set()
        finish: dict[str, Any] = {"type": "stop", "matched": output[-1] if output else None}
        if aborted:
            finish = {"type": "abort", "message": "", "status_code": None, "err_type": None}
        elif len(wanted) > limit:
            finish = {"type": "length", "length": limit}
        yield self._result(ids, output, spans, finish, params)

    def _result(
        self,
        ids: list[int],
        output: list[int],
        spans: list[dict[str, Any]],
        finish: dict[str, Any] | None,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        shown = [i for i in output if i not in (params.get("stop_token_ids") or [])]
        text = self.decode(shown) if self.decode else " ".join(map(str, shown))
        return {
            "text": text,
            "output_ids": list(output),
            "meta_info": {
                "id": f"fake-{next(self._numbers)}",
                "finish_reason": finish,
                "prompt_tokens": len(ids),
                "completion_tokens": len(output),
                "cached_tokens": 0,
                "cached_tokens_details": None,
                "reasoning_tokens": 0,
                "weight_version": spans[-1]["version"] if spans else self.version,
                "weight_versions": spans,
                "num_retractions": 0,
                "input_token_logprobs": [],
                "output_token_logprobs": [[FAKE_LOGPROB, token, None] for token in output],
                "output_token_logprobs_length": len(output),
                "dp_rank": None,
                "e2e_latency": 0.01,
                "response_sent_to_client_ts": 0.0,
            },
        }

    async def _pause(self, body: dict[str, Any]) -> Reply:
        self.paused = body.get("mode", "abort")
        if self.paused == "abort":
            self._changed.set()
            await self._idle.wait()  # the real one answers when all have ended
        else:
            self._go.clear()
        return 200, {"status": "ok", "message": "Generation paused successfully."}

    async def _continue(self, _: dict[str, Any]) -> Reply:
        self.paused = ""
        self._go.set()
        return 200, {"status": "ok", "message": "Generation continued successfully."}

    async def _flush(self, _: dict[str, Any]) -> Reply:
        if self._cannot_flush:
            return 400, "Flush cache failed.\n"
        return 200, "Cache flushed.\n"

    @property
    def _cannot_flush(self) -> bool:
        return self.running > 0 and self.paused != "retract"

    async def _update(self, body: dict[str, Any]) -> Reply:
        folder = body["model_path"]
        if folder in self.refuse or not _is_folder(folder):
            return 400, _updated(False, f"Failed to load {folder}.")
        if body.get("flush_cache", True) and self._cannot_flush:
            self.gone = True  # the real scheduler asserts, and dies of it
            raise httpx.RemoteProtocolError("the fake engine died: cache flush failed")
        await asyncio.sleep(self.pause_s)
        self.version = body.get("weight_version") or self.version
        self.weights.load(folder)
        self.model_path = folder
        self._changed.set()
        return 200, _updated(True, "Succeeded to update model weights.")

    async def _abort(self, _: dict[str, Any]) -> Reply:
        self.aborted += 1
        return 200, None

    async def _server_info(self, _: dict[str, Any]) -> Reply:
        return 200, {"engine": "triforge-local-engine", "tp_size": 1}

    async def _show(self, body: dict[str, Any]) -> Reply:
        found = self.weights.show(body["name"], body.get("truncate_size", 100))
        if found is None:
            return 400, {"error": {"message": "Get parameter by name failed"}}
        return 200, found

    async def _begin(self, _: dict[str, Any]) -> Reply:
        if self.weights.open:
            return 400, {"success": False, "message": "a weight-update session is already open"}
        self.weights.open = True
        return 200, {"success": True, "message": "Success"}

    async def _end(self, _: dict[str, Any]) -> Reply:
        if not self.weights.open:
            return 400, {"success": False, "message": "no weight-update session is open"}
        self.weights.open, self.weights.staged = False, {}
        return 200, {"success": True, "message": "Success"}

    async def _take(self, body: dict[str, Any]) -> Reply:
        if not self.weights.open or self.refuse_tensors:
            return 400, {"success": False, "message": "the fake engine takes no tensors now"}
        self.weights.stage(body["serialized_named_tensors"])
        if body.get("weight_version"):
            self.weights.swap()
            self.version = body["weight_version"]
        return 200, {"success": True, "message": "Success"}


async def _send_events(events: AsyncIterator[dict[str, Any]], send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in events:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()


def _updated(success: bool, message: str) -> dict[str, Any]:
    return {"success": success, "message": message, "num_paused_requests": 0}
