"""A conversation of our client with vLLM: recorded once with a real server, and played back in the tests.

The recordings are what went over the wire: each request with its reply, of a stream all its events.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from httpx_aiohttp import AiohttpTransport

from scripts.calling import ROOT
from scripts.real_sglang.exchanges import PROMPT, Exchange, Folders
from scripts.real_sglang.folders import folders_of
from scripts.real_sglang.install import Install, Tell
from scripts.real_sglang.recordings import settled, write
from scripts.real_sglang.server import API_KEY, serving
from scripts.real_vllm.server import spec
from services.policy.engines.protocol import Extras, Prompt
from services.policy.engines.vllm import VLLMEngine
from triforge.config.base import Sampling
from triforge.errors import TriforgeError

RECORDINGS = ROOT / "tests" / "contract" / "vllm"
_GREEDY = Sampling(temperature=0.0, max_new_tokens=4)


async def converse(engine: VLLMEngine, folders: Folders) -> dict[str, Any]:
    """Use every route of the client, in its good and bad turns; return what it gave, errors included."""
    found: dict[str, Any] = {}

    async def note(name: str, call: Any) -> None:
        try:
            found[name] = await call
        except TriforgeError as error:
            found[name] = error

    await note("health", engine.health())
    await note("start", engine.info())
    one = Prompt(PROMPT, _GREEDY, (2,))
    drawn = Sampling(temperature=2.0, max_new_tokens=3, seed=7, stop=("zz",))
    await note("batch", engine.generate([one, Prompt(PROMPT[:3], drawn, n=2, extras=Extras(top_logprobs=2))]))  # fmt: skip
    held = _GREEDY.model_copy(update={"json_schema": '{"const": "ab"}', "max_new_tokens": 8})
    await note("grammar", engine.generate([Prompt(PROMPT, held, (2,))]))
    await note("scored", engine.prompt_logprobs(PROMPT, ""))
    await note("too_long", engine.generate([Prompt([1] * 9000, _GREEDY)]))
    await note("bad_regex", engine.generate([Prompt(PROMPT, _GREEDY.model_copy(update={"regex": "("}))]))  # fmt: skip
    await note("no_adapter", engine.generate([one], "v000009"))
    await note("across", _across(engine, folders))
    await note("moved", engine.info())
    await note("missing", engine.load_folder(str(folders.missing), 9, flush=True))
    await note("not_whole", engine.info())
    await note("put_back", engine.load_folder(str(folders.start), 2, flush=True))
    await note("back", engine.info())
    await note("no_folder", engine.load_adapter("v000001", str(folders.missing)))
    await note("unload", engine.unload_adapter("v000001"))
    await note("adapters", engine.adapters())
    await note("dtype", engine.dtype())
    return found


async def _across(engine: VLLMEngine, folders: Folders) -> list[Any]:
    """Stream an answer under which the weights change, and end it."""
    long = Prompt(PROMPT, _GREEDY.model_copy(update={"max_new_tokens": 4000}))
    pieces = []
    async with aclosing(engine.stream(long)) as stream:
        pieces.append(await anext(stream))
        await engine.pause("in_place")
        await engine.load_folder(str(folders.other), 1, flush=False)
        await engine.resume()
        while len(pieces[-1].ids) < len(pieces[0].ids) + 4:
            pieces.append(await anext(stream))
        await engine.abort_all()
        pieces += [piece async for piece in stream]
    return pieces


async def record(install: Install, model: Path, service: Path, tell: Tell) -> None:
    """Start a server, talk, write the files, stop it."""
    folders = folders_of(model, service)
    async with serving([spec(install, model, "policy")], service) as (server,):
        tell(f"vLLM {install.version} serves; recording")
        recorder = Recorder(folders)
        engine = VLLMEngine(server.url, api_key=API_KEY, transport=recorder)
        await converse(engine, folders)
        await engine.close()
    write(recorder.kept, RECORDINGS, engine=f"vLLM {install.version}", folders=folders)
    tell(f"{len(recorder.kept)} exchanges in {RECORDINGS}")


class Recorder(httpx.AsyncBaseTransport):
    """Passes requests on, and keeps them with their replies."""

    def __init__(self, folders: Folders) -> None:
        self.kept: list[Exchange] = []
        self._folders, self._inner = folders, AiohttpTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        place = len(self.kept)
        self.kept.append(sent(request, self._folders, place))

        async def passed() -> AsyncIterator[bytes]:
            parts = []
            async for part in response.aiter_raw():
                parts.append(part)
                yield part
            reply = _reply(request, b"".join(parts).decode())
            self.kept[place] = replace(self.kept[place], status=response.status_code, reply=reply)

        return httpx.Response(response.status_code, headers=response.headers, content=passed())

    async def aclose(self) -> None:
        await self._inner.aclose()


def sent(request: httpx.Request, folders: Folders, place: int = 0) -> Exchange:
    """Return a request as an exchange without a reply."""
    path = request.url.raw_path.decode()
    name = f"{place:02d}_{path.partition('?')[0].strip('/').replace('/', '_')}"
    body = json.loads(request.content or b"null")
    return settled(Exchange(name=name, method=request.method, path=path, request=body, status=0, reply=None), folders)  # fmt: skip


def _reply(request: httpx.Request, text: str) -> Any:
    """Return JSON, the events of a stream as a list, or text; of a server's description only what is read."""
    text = re.sub(r"/[^\s']*<path>", "<path>", text)  # what vLLM leaves of a path in an error
    if text.startswith("data: "):
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if request.url.path == "/server_info":
        config = found["vllm_config"]
        read = {name: config["model_config"][name] for name in ("dtype", "logprobs_mode")}
        return {"vllm_config": {"model_config": read, "lora_config": config["lora_config"]}}
    return found
