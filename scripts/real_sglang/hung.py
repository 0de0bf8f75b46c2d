"""A real SGLang that hangs in its update next to a local engine: versions go live without it, and it is healed when it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from scripts.real_sglang.folders import folders_of
from scripts.real_sglang.install import Install, Tell
from scripts.real_sglang.loop import model_info
from scripts.real_sglang.server import ADMIN_KEY, API_KEY, serving, until_ready
from triforge.clients.policy import PolicyClient
from triforge.supervisor.ports import free_port
from triforge.supervisor.process import Process, ProcessSpec
from triforge.types import ChatMessage, GenerateRequest, Sampling, WeightsUpdate

DEADLINE_S, HEALED_S = 20.0, 300.0
_BEGUN = "Update engine weights online from disk begin"
_ASKED = GenerateRequest(
    messages=(ChatMessage(role="user", content="go on"),), n=4, sampling=Sampling(max_new_tokens=2)
)


async def hung(install: Install, model: Path, state: Path, tell: Tell) -> int:
    """Stop an engine in its update, publish twice, let it go on; 0 if no update waited for it and it holds the newest version at the end."""
    folders = folders_of(model, state)
    local, service = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    async with serving(install, model, "policy", logs=state) as (server,):
        shared = {"TRIFORGE_API_KEY": API_KEY, "TRIFORGE_ADMIN_API_KEY": ADMIN_KEY, "TRIFORGE_ROLE": "policy"}  # fmt: skip
        shared |= {"TRIFORGE_ENGINES": f"{server.url},{local}", "TRIFORGE_POLICY_MODEL_URL": service}  # fmt: skip
        shared |= {"TRIFORGE_MODEL": str(model), "TRIFORGE_HANDOVER_TIMEOUT_S": str(DEADLINE_S)}
        engine = ("services.local_engine", "--model-path", str(model), "--port", local.rpartition(":")[2])  # fmt: skip
        keys = {"LOCAL_ENGINE_API_KEY": API_KEY, "LOCAL_ENGINE_ADMIN_API_KEY": ADMIN_KEY}
        processes = [
            Process(ProcessSpec(name=name, command=(sys.executable, "-m", *words), env=env, ready_url=url), state / f"hung-{name}.log")
            for name, words, env, url in (("engine", engine, keys, f"{local}/ready"), ("service", ("services.policy",), shared, f"{service}/readyz"))
        ]  # fmt: skip
        async with PolicyClient(service, api_key=API_KEY, admin_api_key=ADMIN_KEY) as client:
            try:
                for process in processes:
                    process.start()
                    await until_ready(process)
                await _until(lambda: _both_serve(client))
                begun = time.monotonic()
                first = asyncio.create_task(
                    client.update_weights(WeightsUpdate(version=1, uri=str(folders.other)))
                )
                await _until(lambda: _begun(server.log))
                os.killpg(server.group, signal.SIGSTOP)
                states = [await first, await client.update_weights(WeightsUpdate(version=2, uri=str(folders.start)))]  # fmt: skip
                seconds = time.monotonic() - begun
                reply = await client(_ASKED)
                versions = {span.version for output in reply.outputs for span in output.versions}
                await asyncio.sleep(DEADLINE_S)  # so it has been given up before it goes on
                states.append(await client.weights())
                os.killpg(server.group, signal.SIGCONT)
                tell(f"with one engine stopped in its update two versions were live in {seconds:.1f} s: {states}; tokens of {versions}")  # fmt: skip
                await _until(lambda: _both_serve(client))
                healed = await model_info(server)
                tell(f"{time.monotonic() - begun - seconds - DEADLINE_S:.1f} s after it went on both serve; it says version {healed['weight_version']}")  # fmt: skip
            finally:
                await asyncio.gather(*(process.stop() for process in processes))
    right = [(s.version, s.ready) for s in states] == [(1, 1), (2, 1), (2, 1)] and versions == {2}
    return int(not right or healed["weight_version"] != "2" or seconds > DEADLINE_S)


async def _begun(log: Path) -> bool:
    return _BEGUN in await asyncio.to_thread(log.read_text, errors="replace")


async def _both_serve(client: PolicyClient) -> bool:
    return (await client.weights()).ready == 2


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(HEALED_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)
