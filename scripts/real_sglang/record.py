"""Record the conversation of `scripts.real_sglang.exchanges` with a real server into `tests/contract/sglang`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from scripts.calling import ROOT
from scripts.real_sglang.exchanges import Conversation, play
from scripts.real_sglang.folders import folders_of
from scripts.real_sglang.install import Install
from scripts.real_sglang.recordings import write
from scripts.real_sglang.server import ADMIN_KEY, API_KEY, serving, spec

RECORDINGS = ROOT / "tests" / "contract" / "sglang"


async def record(install: Install, model: Path, service: Path, tell: Callable[[str], None]) -> None:
    """Start a server, talk, write the files, stop it."""
    folders = folders_of(model, service)
    async with serving([spec(install, model, "policy")], service) as (server,):
        tell(f"SGLang {install.version} serves; recording")
        async with httpx.AsyncClient(base_url=server.url, timeout=600, trust_env=False) as client:
            exchanges = await play(Conversation(client, API_KEY, ADMIN_KEY), folders)
    write(exchanges.values(), RECORDINGS, engine=f"SGLang {install.version}", folders=folders)
    tell(f"{len(exchanges)} exchanges in {RECORDINGS}")
