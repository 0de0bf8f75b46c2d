"""Whatever is sent to the API, it answers with a status that its description names, and never with a 5xx."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.store import PoolStore
from services.env_adapter.sessions.store import SessionRequest, SessionStore
from services.trainer.runs.store import RunStore
from tests.service.env_service import api, game, rewrite
from triforge.environments import registry
from triforge.store.database import open_database
from triforge.types import GenerateSpec, PoolRequest

JUNK = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "null", "%", "\x00", "é", "0", "-1", "9" * 30, "NaN", "a" * 300, "\ud800"]
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | JUNK,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(JUNK, inner, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(st.just({"params": game()}) | JSON, max_size=2)


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> Iterator[tuple[FastAPI, dict[str, list[str]]]]:
    """The app, and ids that exist, by the name of their parameter."""
    database = open_database(
        f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('api'))}"
    )
    request = PoolRequest(
        name="kitchen", environment="household", generate=GenerateSpec(count=6, heldout=2)
    )
    pool = PoolMaker(database, registry.family).create(request, [])[0]
    tasks = [task.id for task in PoolStore(database).tasks("kitchen", split="train").items]
    made = [
        rewrite(database, tasks[0], "awaiting", "a"),
        rewrite(database, tasks[1], "pending", "b"),
    ]
    RunStore(database).create(
        name="r",
        pool_id=pool.id,
        config={"run": {"eval_every": 0}, "env_adapter": {"played_by": "trainer"}},
    )
    ids = {
        "pool": [pool.id, "kitchen"],
        "task_id": tasks,
        "proposal_id": [proposal.id for proposal in made],
        "session_id": [SessionStore(database).create(SessionRequest()).state.id],
    }
    yield api(database), ids
    database.close()


def shapes(document: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a fragment of a JSON schema, roughly."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return shapes(document, document["components"]["schemas"][name])
    if "anyOf" in schema:
        return st.one_of([shapes(document, option) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        fields = schema["properties"].items()
        return st.fixed_dictionaries(
            {}, optional={name: shapes(document, part) | JSON for name, part in fields}
        )
    known = {
        "integer": st.integers(0, 20),
        "number": st.floats(0, 1),
        "boolean": st.booleans(),
        "null": st.none(),
        "array": ROWS,
        "string": st.sampled_from(["household", "kitchen", "r", "mug"]) | JUNK,
    }
    return known.get(schema.get("type", ""), JSON)


def as_text(value: Any) -> str:
    """A value as it stands in a query or a path."""
    return str(value).encode("utf-8", "replace").decode()


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_breaks_the_api_or_surprises_its_description(
    service: tuple[FastAPI, dict[str, list[str]]], data: st.DataObject
) -> None:
    app, ids = service
    document = app.openapi()
    operations = [(p, m, op) for p, item in document["paths"].items() for m, op in item.items()]
    path, method, operation = data.draw(st.sampled_from(operations))
    query, headers = {}, {}
    for parameter in operation.get("parameters", []):
        name, place = parameter["name"], parameter["in"]
        if place == "path":
            chosen = data.draw(st.sampled_from(ids[name]) | JUNK, label=name)
            if not chosen or "/" in chosen or chosen in (".", ".."):  # other paths than this one
                chosen = "x"
            path = path.replace(f"{{{name}}}", quote(as_text(chosen)))
        elif data.draw(st.booleans(), label=f"send {name}"):
            value = as_text(data.draw(shapes(document, parameter["schema"]) | JUNK, label=name))
            if place == "query":
                query[name] = value
            else:
                headers[name] = re.sub("[^ -~]", "?", value)
    sent: dict[str, Any] = {}
    if "requestBody" in operation and data.draw(st.integers(0, 9), label="body"):
        media = data.draw(st.sampled_from(sorted(operation["requestBody"]["content"])))
        schema = operation["requestBody"]["content"][media]["schema"]
        headers["content-type"] = media
        body = data.draw(shapes(document, schema) | JSON, label="body")
        cut = data.draw(st.sampled_from([None, None, None, -1, 3]), label="cut")
        sent["content"] = json.dumps(body)[:cut].encode()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://env") as http:
            return await http.request(method.upper(), path, params=query, headers=headers, **sent)

    reply = asyncio.run(ask())
    event(f"answered {reply.status_code}")
    assert reply.status_code < 500
    assert {str(reply.status_code), "default"} & operation["responses"].keys(), reply.text
    if reply.status_code >= 400:
        assert reply.headers["content-type"] == "application/problem+json"
