"""A policy service in one process: fake engines, real everything else, no network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine
from triforge.store.images import ImageStore
from triforge.testing.model_folders import words_folder
from triforge.types import ChatMessage, GenerateRequest

WORDS = ("go", "take", "cup", "fridge", "you", "see", "a")
GO = GenerateRequest(messages=(ChatMessage(role="user", content="go"),))


class Service:
    """The parts of a service, within a test's reach."""

    def __init__(
        self,
        fakes: dict[str, FakeEngine],
        model_path: Path,
        wait_s: float = 0.0,
        *,
        images: ImageStore | None = None,
        **options: Any,
    ) -> None:
        self.fakes = list(fakes.values())
        engines = [
            SGLangEngine(url, transport=httpx.ASGITransport(fake)) for url, fake in fakes.items()
        ]
        self.pool = Pool(engines, wait_s=wait_s)
        parts = {"role": "policy", "model_path": str(model_path), "probe_s": 0.01} | options
        self.weights = WeightSync(self.pool, **parts)
        self.gateway = Gateway(self.pool, self.weights, images)

    async def start(self) -> None:
        """Look at the engines once, as the watch does."""
        await self.weights.look()

    def generate_bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the generation requests that the first engine got."""
        return [body for path, body in self.fakes[0].calls if path == "/generate"]

    def client(self, **keys: str) -> httpx.AsyncClient:
        """A client of the service's APIs."""
        app = create_app(gateway=self.gateway, role="policy", **keys)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


MakeService = Callable[..., Service]


async def start(make_service: MakeService, *fakes: FakeEngine, **options: Any) -> Service:
    """Make a service and have it look at its engines."""
    service = make_service(*fakes, **options)
    await service.start()
    return service


async def versions(service: Service, count: int = 6) -> set[int]:
    """Return the versions of the tokens of some answers."""
    replies = await service.gateway.generate([GO] * count)
    return {span.version for reply in replies for o in reply.outputs for span in o.versions}


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks and threads run until the condition holds."""
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer of whole words."""
    return words_folder(tmp_path / "model", WORDS)


@pytest.fixture
def make_service(model: Path) -> MakeService:
    """Makes a service with the given fake engines, named http://a, http://b, ..."""

    def make(*fakes: FakeEngine, wait_s: float = 0.0, **options: Any) -> Service:
        for fake in fakes:
            fake.model_path = str(model)
            fake.weights.load(fake.model_path)
        urls = (f"http://{name}" for name in "abcdef")
        return Service(dict(zip(urls, fakes, strict=False)), model, wait_s, **options)

    return make
