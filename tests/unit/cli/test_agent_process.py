"""The environment of an agent's command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from triforge.cli.agent_process import REWARD, SessionCommand, StayingCommand

SHOW = "import os; print(os.environ['NO_PROXY'], os.environ['no_proxy'], os.environ['HTTP_PROXY'])"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "[::1]"])
async def test_no_proxy_stands_between_an_agent_and_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "internal.example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    url = f"http://{host}:8001/sessions/s/v1"
    session = {REWARD: str(tmp_path / "reward"), "OPENAI_BASE_URL": url}
    for agent in (SessionCommand([sys.executable, "-c", SHOW], prints=True),
                  StayingCommand([sys.executable, "-c", SHOW])):  # fmt: skip
        try:
            result = await agent.play(session, tmp_path, 20.0)
        finally:
            await agent.stop()
        upper, lower, proxy = (result.answer or b"").decode().split()
        assert upper == lower
        assert {"internal.example", "127.0.0.1", "localhost", "::1", host.strip("[]")} <= {
            *upper.split(",")
        }
        assert proxy == "http://proxy:3128"


async def test_a_service_elsewhere_may_be_behind_the_proxy(tmp_path: Path) -> None:
    session = {REWARD: str(tmp_path / "reward"), "OPENAI_BASE_URL": "https://triforge.example/v1"}
    show = SHOW.partition(", os.environ['HTTP")[0] + ")"
    result = await SessionCommand([sys.executable, "-c", show], prints=True).play(
        session, tmp_path, 20.0
    )
    assert b"triforge.example" not in (result.answer or b"")
