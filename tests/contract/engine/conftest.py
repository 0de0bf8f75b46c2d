"""The engine under contract: the local engine as a process of its own, or the one that ENGINE_URL names.

`make test` runs these tests against the local engine with a tiny random model. `make test-sglang` runs the same tests
against real SGLang; it sets ENGINE_URL, ENGINE_API_KEY, ENGINE_ADMIN_KEY, ENGINE_MODEL (the folder that is served) and
ENGINE_OTHER (one of the same shapes). `make test-vllm` runs `test_engine.py` alone, against real vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.real_sglang.exchanges import Conversation, Folders
from scripts.real_sglang.folders import folders_of
from triforge.supervisor.ports import free_port
from triforge.testing.model_folders import chatml_folder

ROOT = Path(__file__).parents[3]
API_KEY, ADMIN_KEY = "generate-key", "control-key"
_START_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """An engine that answers, and what it serves."""

    url: str
    api_key: str
    admin_key: str
    folders: Folders
    real: bool  # SGLang, not the local engine


class Engine:
    """One engine as a client sees it: `generate` with the API key, `control` with the admin key."""

    def __init__(self, served: Served, client: httpx.AsyncClient) -> None:
        self.served, self.folders, self.client = served, served.folders, client
        self._generate = {"authorization": f"Bearer {served.api_key}"}
        self._control = {"authorization": f"Bearer {served.admin_key}"}

    def conversation(self) -> Conversation:
        return Conversation(self.client, self.served.api_key, self.served.admin_key)

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(path, json=body, headers=self._generate)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path, headers=self._generate)

    async def control(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        """A control call that must end with that status; its JSON, or its text."""
        response = await self.client.post(path, json=body or {}, headers=self._control)
        assert response.status_code == status, (path, response.status_code, response.text)
        try:
            return response.json()
        except ValueError:
            return response.text

    async def generate(self, ids: Any, *, logprobs: bool = True, **params: Any) -> Any:
        """Greedy, four tokens, no end of sequence by default."""
        sampling = {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True} | params
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": logprobs}
        response = await self.post("/generate", body)
        assert response.status_code == 200, response.text
        return response.json()

    async def info(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get("/model_info")).json()
        return found

    async def load(self, folder: Path, version: str) -> None:
        await self.control(
            "/update_weights_from_disk", {"model_path": str(folder), "weight_version": version}
        )

    async def emptied(self) -> None:
        """Wait until nothing runs: SGLang ends a stream a moment before it lets the request go."""
        while (await self.client.post("/flush_cache", headers=self._control)).status_code != 200:  # noqa: ASYNC110  servers send no event
            await asyncio.sleep(0.05)

    async def norm(self) -> list[float]:
        found: list[float] = await self.control(
            "/get_weights_by_name", {"name": "model.norm.weight", "truncate_size": 8}
        )
        return found

    async def at_start(self) -> None:
        """Restore the start: not paused, nothing running, the first weights as version 0."""
        await self.control("/continue_generation")
        await self.control("/abort_request", {"abort_all": True})
        info = await self.info()
        if (info["weight_version"], info["model_path"]) != ("0", str(self.folders.start)):
            await self.load(self.folders.start, "0")


def tokens(reply: Any) -> list[int]:
    found: list[int] = reply["output_ids"]
    return found


def scores(reply: Any) -> list[float]:
    return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = tmp_path_factory.mktemp("engine")
    if os.environ.get("ENGINE_URL"):
        start, other = (Path(os.environ[name]) for name in ("ENGINE_MODEL", "ENGINE_OTHER"))
        yield Served(
            url=os.environ["ENGINE_URL"],
            api_key=os.environ["ENGINE_API_KEY"],
            admin_key=os.environ["ENGINE_ADMIN_KEY"],
            folders=Folders(start=start, other=other, missing=service / "missing"),
            real=True,
        )
        return
    folders = folders_of(_tiny_model(service / "tiny"), service)
    with _local_engine(folders.start, service / "engine.log") as url:
        yield Served(url=url, api_key=API_KEY, admin_key=ADMIN_KEY, folders=folders, real=False)


@pytest.fixture
async def engine(served: Served) -> AsyncIterator[Engine]:
    async with httpx.AsyncClient(base_url=served.url, timeout=600, trust_env=False) as client:
        found = Engine(served, client)
        await found.at_start()
        yield found


def _tiny_model(folder: Path) -> Path:
    """Random weights behind a byte-level tokenizer, with a context as long as SmolLM2's.

    Many layers make it slow: `LONG` tokens take far longer than the few calls that a long request must outlast.
    """
    vocabulary = 320
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = LlamaForCausalLM(config)
    chatml_folder(folder)
    model.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def _local_engine(model: Path, log: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "services.local_engine", "--model-path", str(model), "--port", str(port),
        "--served-model-name", "policy", "--weight-version", "0",
        "--api-key", API_KEY, "--admin-api-key", ADMIN_KEY,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _ready(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
