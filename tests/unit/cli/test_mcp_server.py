"""`triforge mcp`, asked by the official client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import POOL, Services, run_state
from triforge.cli.mcp_server import server
from triforge.config import Settings

mcp = pytest.importorskip("mcp", reason="pip install -e '.[mcp]'")


async def test_an_agent_finds_pools_starts_a_run_and_reads_its_report(services: Services) -> None:
    services.say("GET /v1/pools", f'{{"items": [{POOL.model_dump_json()}], "next_cursor": null}}')
    services.say("POST /v1/runs", run_state("queued"), status=201)
    services.say("GET /v1/runs/run-1/steps", '{"items": [], "next_cursor": null}')
    services.refuse("POST /v1/runs/run-1/stop", 409, "conflict", "run run-1 has ended")
    found = Settings(env_adapter_url=services.url, trainer_url=services.url)
    async with mcp.Client(server(found)) as client:

        async def ask(tool: str, **arguments: Any) -> Any:
            return await client.call_tool(tool, arguments)

        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names >= {"list_pools", "show_pool", "list_runs", "start_run", "report", "stop_run"}
        pools = (await ask("list_pools")).structured_content["result"]
        assert [pool["name"] for pool in pools] == ["kitchen"]
        config = {"run": {"steps": 2}}
        run = (await ask("start_run", pool="kitchen", config=config)).structured_content
        assert (run["id"], run["status"]) == ("run-1", "queued")
        assert services.asked[-1][1] == {"pool": "kitchen", "name": "", "config": config}
        assert (await ask("report", run="run-1")).structured_content == {"result": []}
        refused = await ask("stop_run", run="run-1")
        assert refused.is_error
        assert "run run-1 has ended" in refused.content[0].text
