"""env_adapter and a policy service before a fake engine, sharing one broker: all that sessions need."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from services.policy.api.sessions import Sessions
from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine
from tests.service.env_service import api
from tests.service.keyed import fresh
from tests.service.test_policy_http import serving
from triforge.broker import MemoryBroker, SessionLog
from triforge.broker.protocol import PAYLOAD_TTL_S
from triforge.rendering import Renderer
from triforge.store.database import Database
from triforge.testing.model_folders import TOOLS_TEMPLATE, chatml_folder
from triforge.types import MadeSession, SessionTrace, Turn

END = 2


class CountingBroker(MemoryBroker):
    """One that writes down what is asked of it, which are round trips to a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.trips: list[str] = []

    async def get(self, *keys: str) -> list[str | None]:
        self.trips += ["get"] if keys else []
        return await super().get(*keys)

    async def put(self, key: str, text: str, ttl_s: float = PAYLOAD_TTL_S) -> bool:
        self.trips.append("put")
        return await super().put(key, text, ttl_s)

    async def count(self, key: str, *others: str) -> tuple[int, list[str | None]]:
        found = await super().count(key, *others)
        self.trips[len(self.trips) - bool(others) :] = ["count"]
        return found


@dataclass
class Services:
    """Both services; `env` asks env_adapter, in process."""

    engine: FakeEngine
    renderer: Renderer
    env: httpx.AsyncClient
    database: Database
    broker: CountingBroker
    env_url: str
    engine_url: str
    model: Path

    @contextlib.asynccontextmanager
    async def another_policy(self) -> AsyncIterator[str]:
        """A policy service that knows nothing of what the first one has answered."""
        async with policy(self.engine_url, self.model, self.broker) as (url, _):
            yield url

    def says(self, *texts: str) -> None:
        """Set the answers of the engine, in turn; the last one repeats."""
        left = [*texts]

        def answer(*_: Any) -> list[int]:
            text = left.pop(0) if len(left) > 1 else left[0]
            return [*self.renderer.encode_text(text), END]

        self.engine.answer = answer

    async def begin(self, **wanted: Any) -> MadeSession:
        reply = await self.env.post("/v1/sessions", json=wanted)
        assert reply.status_code == 201, reply.text
        return MadeSession.model_validate_json(reply.content)

    def client(self, made: MadeSession, url: str = "") -> openai.AsyncOpenAI:
        """OpenAI's own client of a session, at this policy service or another; it repeats nothing."""
        base_url = f"{url}/sessions/{made.session.id}/v1" if url else made.base_url
        return openai.AsyncOpenAI(base_url=base_url, api_key=made.key, max_retries=0)

    async def tell(self, made: MadeSession, verb: str, **body: Any) -> httpx.Response:
        """Ask env_adapter something about a session, with its key."""
        path = f"/v1/sessions/{made.session.id}/{verb}".rstrip("/")
        headers = {"authorization": f"Bearer {made.key}"}
        if verb in ("", "trace"):
            return await self.env.get(path, headers=headers)
        return await self.env.post(path, json=body, headers=headers)

    async def turns(self, made: MadeSession) -> tuple[Turn, ...]:
        reply = await self.tell(made, "trace")
        assert reply.status_code == 200, reply.text
        return SessionTrace.model_validate_json(reply.content).turns

    def prompts(self) -> list[list[int]]:
        """Return the prompts that the engine received."""
        bodies = [body for path, body in self.engine.calls if path == "/generate"]
        return [list(ids) for body in bodies for ids in _rows(body["input_ids"])]


@contextlib.asynccontextmanager
async def policy(
    engine_url: str, model: Path, broker: MemoryBroker
) -> AsyncIterator[tuple[str, Renderer]]:
    """A policy service before an engine, with sessions on a broker."""
    pool = Pool([SGLangEngine(engine_url)], wait_s=0.2)
    weights = WeightSync(pool, role="policy", model_path=str(model), probe_s=0.05)
    await weights.look()
    gateway = Gateway(pool, weights)
    sessions = Sessions(gateway, SessionLog(broker))
    app = create_app(gateway=gateway, role="policy", sessions=sessions)
    async with serving(app) as (url, _):
        yield url, weights.renderer


def _rows(ids: Any) -> list[Any]:
    return ids if ids and isinstance(ids[0], list) else [ids]


@contextlib.asynccontextmanager
async def services(
    folder: Path, model: Path | None = None, kind: type[FakeEngine] = FakeEngine
) -> AsyncIterator[Services]:
    """Both services, as long as they are needed."""
    if model is None:
        model = chatml_folder(folder / "model")
        (model / "chat_template.jinja").write_text(TOOLS_TEMPLATE, encoding="utf-8")
    engine, broker, database = kind(model_path=str(model), version="4"), CountingBroker(), fresh(folder)  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        deep, _ = await stack.enter_async_context(serving(engine))
        url, renderer = await stack.enter_async_context(policy(deep, model, broker))
        app = api(database, log=SessionLog(broker), policy_url=url)
        env_url, _ = await stack.enter_async_context(serving(app))
        env = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://env")
        await stack.enter_async_context(env)
        engine.decode = renderer.decode
        yield Services(engine, renderer, env, database, broker, env_url, deep, model)
        database.close()
