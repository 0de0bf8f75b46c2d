"""A fake engine that speaks the part of SGLang's HTTP API that we use.

It is a plain ASGI callable: give it to `httpx.ASGITransport`, or to any ASGI server. It has no model. Its answers
are a function of the prompt, one token at a time, so that a pause or a change of weights happens in the middle of an answer
as it does in a real engine. Shapes follow the recordings in the contract tests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from triforge.testing import FAKE_LOGPROB

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply = tuple[int, Any]
Body = dict[str, Any]
Floats = NDArray[np.float32]

_FILE = "model.safetensors"


def write_tensors(folder: Path, tensors: dict[str, Floats]) -> None:
    """Write `model.safetensors` into a folder."""
    save_file(tensors, folder / _FILE)


@dataclass
class FakeWeights:
    """The tensors of a fake engine by name."""

    held: dict[str, Floats] = field(default_factory=dict)
    stale: bool = False  # new weights are announced and not taken
    hidden: bool = False  # of a model whose tensors SGLang cannot show
    logprobs: list[float] = field(default_factory=list)  # what it says of a probe that it has

    def load(self, folder: str) -> None:
        """Read a folder; one without weights changes nothing."""
        path = Path(folder) / _FILE
        if path.is_file() and not self.stale:
            self.held = load_file(path)
            probe = path.with_name("probe.json")
            self.logprobs = json.loads(probe.read_text())["logprobs"] if probe.is_file() else []


@dataclass
class FakeAdapters:
    """The adapters of a fake engine. What it says of a prompt with one of them is what the adapter's own probe expects."""

    held: dict[str, str] = field(default_factory=dict)  # folders by name
    refuse: set[str] = field(default_factory=set)  # folders that are answered with 400
    stale: bool = False  # adapters are loaded and not applied
    unloaded: list[str] = field(default_factory=list)  # names, oldest first


def echo(ids: Sequence[int], params: Body) -> list[int]:
    """Say the last token of the prompt, then the first stop token if there is one."""
    ends = params.get("stop_token_ids") or []
    return [ids[-1], *ends[:1]]


@dataclass(eq=False)
class FakeEngine:
    """One engine: first what it is made with and how it fails, then what a test reads of it."""

    # The tokens of an answer, from the prompt's ids and sampling_params; cut at max_new_tokens.
    answer: Callable[[Sequence[int], Body], Sequence[int]] = echo
    decode: Callable[[Sequence[int]], str] | None = None  # None writes the ids as words
    version: str = "0"
    model_path: str = "/models/fake"
    api_key: str = (
        ""  # bearer token of /generate, /model_info and /server_info; empty asks for none
    )
    admin_api_key: str = ""  # of the pause and weight routes; empty takes `api_key`
    fail_next: int = 0  # so many generate calls are answered with the next two
    fail_status: int = 500
    fail_message: str = "the fake engine is set to fail"
    pause_s: float = 0.0  # between two tokens
    wait_at: int = -1  # at this token an answer waits until weights change or a pause aborts it
    gone: bool = False  # nothing listens any more
    silent: bool = False  # connections are taken and nothing is ever answered
    starting: bool = False  # /ready says 503
    refuse: set[str] = field(default_factory=set)  # folders answered with 400
    lie: str | None = None  # version that /model_info says instead of the true one
    nonsense: Any = None  # what /generate answers instead of the truth
    hangs: set[str] = field(default_factory=set)  # paths that are never answered
    ranks: int = 1  # its --dp-size
    memory_saver: bool = True  # its --enable-memory-saver
    released: bool = False  # what weights hold is lost until they are loaded again
    cached: dict[tuple[Any, ...], str] = field(default_factory=dict)  # versions by key and prompt
    outdated: int = 0  # answers over a prompt that older weights had cached
    calls: list[tuple[str, Any]] = field(default_factory=list)  # path and body, oldest first
    running: int = 0  # answers being written now
    paused: str = ""  # the mode while answers are held
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # an answer waits at `wait_at`
    aborted: int = 0  # calls of /abort_request
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
        path, body = scope["path"], await _read(receive)
        self.calls.append((path, body))
        if self.silent or path in self.hangs:
            await asyncio.Event().wait()
        status, found = await self._route(path, body, dict(scope["headers"]))
        if isinstance(found, AsyncIterator):
            await _send_events(found, send)
        else:
            await _answer(send, status, found)

    def paths(self) -> list[str]:
        """The paths of all calls, oldest first."""
        return [path for path, _ in self.calls]

    async def _route(self, path: str, body: Body, headers: dict[bytes, bytes]) -> Reply:
        routes: dict[str, Callable[[Body], Awaitable[Reply]]] = {
            "/ready": self._ready,
            "/health": self._ready,
            "/model_info": self._model_info,
            "/generate": self._generate,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/update_weights_from_disk": self._update,
            "/release_memory_occupation": self._release,
            "/resume_memory_occupation": self._resume,
            "/abort_request": self._abort,
            "/server_info": self._server_info,
            "/get_weights_by_name": self._show,
            "/load_lora_adapter": self._load_adapter,
            "/unload_lora_adapter": self._unload_adapter,
            "/v1/models": self._cards,
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

    async def _ready(self, _: Body) -> Reply:
        return (503, "") if self.starting or self.paused else (200, "")

    async def _model_info(self, _: Body) -> Reply:
        return 200, {
            "model_path": self.model_path,
            "tokenizer_path": self.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.version if self.lie is None else self.lie,
        }

    async def _server_info(self, _: Body) -> Reply:
        found = {"engine": "triforge-local-engine", "tp_size": 1, "dp_size": self.ranks}
        return 200, found | {"enable_memory_saver": self.memory_saver}

    # ---- answers ----

    async def _generate(self, body: Body) -> Reply:
        if self.fail_next > 0:
            self.fail_next -= 1
            return self.fail_status, {"error": {"message": self.fail_message}}
        if self.nonsense is not None:
            return 200, self.nonsense
        if self.released:
            self._die("an illegal memory access")
        rows = body.get("input_ids")
        if not isinstance(rows, list) or not rows:
            return 400, {"error": {"message": "the fake engine wants input_ids"}}
        adapter = body.get("lora_path")
        if adapter is not None and adapter not in self.adapters.held:
            message = f"Got LoRA adapter that has never been loaded: {adapter}"
            return 400, {"error": {"message": message}}
        params = body.get("sampling_params") or {}
        single = not isinstance(rows[0], list)
        key = body.get("extra_key")
        if single and body.get("stream"):
            return 200, self._write(rows, params, key)
        if single and params.get("n", 1) == 1:
            found = await self._say(rows, params, key)
            if body.get("logprob_start_len") == 0:
                found["meta_info"]["input_token_logprobs"] = self._prompt_logprobs(rows, adapter)
            return 200, found
        rows = [rows] if single else rows
        each = params if isinstance(params, list) else [params] * len(rows)
        asked = zip(rows, each, strict=True)
        answers = [self._say(row, p, key) for row, p in asked for _ in range(p.get("n", 1))]
        return 200, list(await asyncio.gather(*answers))

    def _prompt_logprobs(self, ids: Sequence[int], adapter: str | None) -> list[list[Any]]:
        """Those of the probe of the adapter, or of the weights; -9 each without."""
        values: list[Any] = [None, *(self.weights.logprobs or [-9.0] * (len(ids) - 1))]
        if adapter is not None and not self.adapters.stale:
            probe = json.loads((Path(self.adapters.held[adapter]) / "probe.json").read_text())
            values = [None, *probe["logprobs"]]
        return [[value, token, None] for value, token in zip(values, ids, strict=True)]

    async def _say(self, ids: list[int], params: Body, key: str | None = None) -> Body:
        return [result async for result in self._write(ids, params, key)][-1]

    async def _write(self, ids: list[int], params: Body, key: str | None) -> AsyncIterator[Body]:
        """The answer after each token, and once more when it has ended."""
        wanted = list(self.answer(ids, params))
        limit = params.get("max_new_tokens", 128)
        output: list[int] = []
        spans: list[Body] = []
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
                if not output:
                    known = self.cached.setdefault((key, *ids), self.version)
                    self.outdated += known != self.version
                if not spans or spans[-1]["version"] != self.version:
                    spans.append({"version": self.version, "start": len(output), "end": 0})
                output.append(token)
                spans[-1]["end"] = len(output)
                yield self._result(ids, output, spans, None, params)
        finally:
            self.running -= 1
            if self.running == 0:
                self._idle.set()
        finish: Body = {"type": "stop", "matched": output[-1] if output else None}
        if aborted:
            finish = {"type": "abort", "message": "", "status_code": None, "err_type": None}
        elif len(wanted) > limit:
            finish = {"type": "length", "length": limit}
        yield self._result(ids, output, spans, finish, params)

    def _result(
        self,
        ids: list[int],
        output: list[int],
        spans: list[Body],
        finish: Body | None,
        params: Body,
    ) -> Body:
        shown = [i for i in output if i not in (params.get("stop_token_ids") or [])]
        text = self.decode(shown) if self.decode else " ".join(map(str, shown))
        if finish is None:  # half a character is not shown
            text = text.rstrip("\ufffd")
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

    # ---- pauses and weights ----

    async def _pause(self, body: Body) -> Reply:
        self.paused = body.get("mode", "abort")
        if self.paused == "abort":
            self._changed.set()
            await self._idle.wait()  # the real one answers when all have ended
        else:
            self._go.clear()
        return 200, {"status": "ok", "message": "Generation paused successfully."}

    async def _continue(self, _: Body) -> Reply:
        self.paused = ""
        self._go.set()
        return 200, {"status": "ok", "message": "Generation continued successfully."}

    async def _release(self, _: Body) -> Reply:
        if self.running or self.released:
            self._die("release_memory_occupation should be called only when server is idle")
        self.released = True
        self.weights.held = {name: tensor * 0 - 1 for name, tensor in self.weights.held.items()}
        return 200, None

    async def _resume(self, _: Body) -> Reply:
        if not self.released:
            self._die("KeyError in offload_tags")
        self.released = False
        return 200, None

    def _die(self, why: str) -> NoReturn:
        self.gone = True
        raise httpx.RemoteProtocolError(f"the fake engine died: {why}")

    async def _abort(self, _: Body) -> Reply:
        self.aborted += 1
        return 200, None

    async def _flush(self, _: Body) -> Reply:
        if self._cannot_flush:
            return 400, "Flush cache failed.\n"
        self.cached.clear()
        return 200, "Cache flushed.\n"

    @property
    def _cannot_flush(self) -> bool:
        return self.running > 0 and self.paused != "retract"

    async def _update(self, body: Body) -> Reply:
        folder = body["model_path"]
        if folder in self.refuse or not _is_folder(folder):
            return 400, _updated(False, f"Failed to load {folder}.")
        if body.get("flush_cache", True) and self._cannot_flush:
            self._die("cache flush failed")  # the real scheduler asserts
        if body.get("flush_cache", True):
            self.cached.clear()
        await asyncio.sleep(self.pause_s)
        self.version = body.get("weight_version") or self.version
        self.weights.load(folder)
        self.model_path = folder
        self._changed.set()
        return 200, _updated(True, "Succeeded to update model weights.")

    async def _show(self, body: Body) -> Reply:
        held = None if self.weights.hidden else self.weights.held.get(body["name"])
        found = None if held is None else held[: body.get("truncate_size", 100)].tolist()
        if self.ranks > 1:
            return 200, [found] * self.ranks
        if found is None:
            return 400, {"error": {"message": "Get parameter by name failed"}}
        return 200, found

    # ---- adapters ----

    async def _load_adapter(self, body: Body) -> Reply:
        name, folder = body["lora_name"], body["lora_path"]
        refused = name in self.adapters.held or folder in self.adapters.refuse
        if not refused:
            self.adapters.held[name] = folder
        return self._adapted(f"LoRA adapter {name} cannot be loaded" if refused else None)

    async def _unload_adapter(self, body: Body) -> Reply:
        name = body["lora_name"]
        if self.adapters.held.pop(name, None) is None:
            return self._adapted(f"LoRA adapter {name} is not loaded")
        self.adapters.unloaded.append(name)
        return self._adapted(None)

    def _adapted(self, error: str | None) -> Reply:
        held = self.adapters.held
        body = {"success": error is None, "error_message": error, "loaded_adapters": held}
        return (200 if error is None else 400), body

    async def _cards(self, _: Body) -> Reply:
        cards = [{"id": "fake", "root": "fake", "parent": None}]
        cards += [{"id": n, "root": r, "parent": "fake"} for n, r in self.adapters.held.items()]
        return 200, {"object": "list", "data": cards}


async def _read(receive: Receive) -> Body:
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    found: Body = json.loads(raw) if raw else {}
    return found


async def _answer(send: Send, status: int, found: Any) -> None:
    text = isinstance(found, str)
    content = found.encode() if text else json.dumps(found).encode()
    headers = [(b"content-type", b"text/plain" if text else b"application/json")]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _send_events(events: AsyncIterator[Body], send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in events:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()


def _updated(success: bool, message: str) -> Body:
    return {"success": success, "message": message, "num_paused_requests": 0}
