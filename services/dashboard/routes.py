"""The pages, and the one route by which their forms change something."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Literal
from urllib.parse import parse_qsl

import httpx
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from services.dashboard.apis import Apis
from services.dashboard.lines import View
from services.dashboard.pages import Pages
from services.dashboard.rollouts import Rollouts
from triforge.clients.transport import LOST
from triforge.errors import ForbiddenError

_ASSETS = {"style.css": "text/css", "live.js": "text/javascript", "curves.js": "text/javascript"}
_DAY_S = 86_400
Text = Annotated[str, Query(max_length=200)]
EventId = Annotated[str, Query(pattern=r"^\d{1,19}(-\d{1,19})?$")]


def key_of(authorization: Annotated[str, Header()] = "") -> str:
    """The key that came with the request: a bearer token, or the password that a browser asked for; else empty."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


Key = Annotated[str, Depends(key_of)]


def routes(apis: Apis, pages: Pages) -> APIRouter:
    """All pages of the service."""
    router = APIRouter(default_response_class=HTMLResponse)

    @router.get("/")
    async def overview(key: Key, older: Text = "") -> str:
        """Services, runs (`older` is a cursor) and pools."""
        return await pages.overview(key, older)

    @router.get("/deployment")
    async def deployment(key: Key) -> str:
        """What waits, who works, and which versions are live."""
        return await pages.deployments.show(key)

    @router.get("/pools/{pool}")
    async def pool(
        pool: str,
        key: Key,
        search: Text = "",
        state: Text = "",
        rewrites: Text = "",
        cursor: str = "",
        after: str = "",
    ) -> str:
        """A pool: its tasks (`search`, `state`, `cursor`) and its rewrites (`rewriter` is a state, `after` a cursor)."""
        return await pages.pool(
            key,
            pool,
            tasks={"search": search, "state": state, "cursor": cursor},
            rewrites={"state": rewrites, "cursor": after},
        )

    @router.get("/tasks/{task_id}")
    async def task(task_id: str, key: Key) -> str:
        """All versions of a task, with what changed from each to the next and how each was measured."""
        return await pages.tasks.lineage(key, task_id)

    @router.get("/proposals/{proposal_id}")
    async def proposal(proposal_id: str, key: Key) -> str:
        """A rewrite with everything said about it."""
        return await pages.tasks.proposal(key, proposal_id)

    router.include_router(_form_routes(pages))
    router.include_router(_run_routes(apis, pages))
    router.include_router(_rollout_routes(pages.rollouts))

    @router.get("/compare")
    async def compare(
        key: Key,
        run: Annotated[list[str], Query(default_factory=list, max_length=50)],
        measure: Text = "",
    ) -> str:
        """Runs beside one another: curves, configs, held-out tasks."""
        return await pages.compare.runs(key, run, measure)

    @router.get("/assets/{name}", response_class=Response)
    async def asset(name: str) -> Response:
        """The style and the script of all pages."""
        if name not in _ASSETS:
            return Response("no such file", status_code=404, media_type="text/plain")
        content = files("services.dashboard").joinpath("html", name).read_bytes()
        headers = {"cache-control": f"public, max-age={_DAY_S}"}
        return Response(content, media_type=_ASSETS[name], headers=headers)

    return router


async def _own_form(request: Request) -> dict[str, str]:
    """The fields of a form of ours: browsers send a key that they remember to whoever asks for this address."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if origin not in (f"http://{host}", f"https://{host}"):
        raise ForbiddenError(
            f"Origin: given {origin[:80]!r}, expected this page's own; forms are sent by the page"
        )
    return dict(parse_qsl((await request.body()).decode(errors="replace")))


def _form_routes(pages: Pages) -> APIRouter:
    router = APIRouter(default_response_class=HTMLResponse)

    @router.post("/actions")
    async def act(request: Request, key: Key) -> RedirectResponse:
        """What people decide about a task or a rewrite, from a form on its page."""
        address = await pages.tasks.act(key, await _own_form(request))
        return RedirectResponse(address, status_code=303)

    @router.get("/try")
    async def try_(key: Key, task: Text = "") -> str:
        """Models to talk to and to watch."""
        return await pages.trying.show(key, {"task": task})

    @router.post("/try")
    async def go_on(request: Request, key: Key) -> str:
        """What a form of that page asks for; nothing is kept but in the page."""
        return await pages.trying.show(key, await _own_form(request))

    return router


def _run_routes(apis: Apis, pages: Pages) -> APIRouter:
    router = APIRouter(prefix="/runs/{run_id}", default_response_class=HTMLResponse)

    @router.get("")
    async def run(
        run_id: str,
        key: Key,
        x: Literal["step", "time"] = "step",
        smooth: Annotated[float, Query(ge=0.0, le=0.999)] = 0.0,
    ) -> str:
        """A run: where it stands, its curves by steps or time, smoothed, its newest steps, its weights."""
        return await pages.run(key, run_id, View(time=x == "time", smooth=smooth))

    @router.get("/timeline")
    async def timeline(
        run_id: str, key: Key, step: Annotated[int | None, Query(ge=0, le=10**9)] = None
    ) -> str:
        """When each process worked on a step, the newest if none is given."""
        return await pages.timelines.step(key, run_id, step)

    @router.get("/steps.csv", response_class=Response)
    async def measures(run_id: str, key: Key) -> Response:
        """A row a finished step, a column a measure."""
        return Response(await pages.measures(key, run_id), media_type="text/csv")

    @router.get("/events", response_class=StreamingResponse)
    async def events(
        run_id: str,
        key: Key,
        after: EventId | None = None,
        last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,19}(-\d{1,19})?$")] = None,
    ) -> StreamingResponse:
        """The events of a run from now on, or after an event."""
        since = last_event_id or after or f"{int(time.time() * 1000)}-0"
        opened = apis.events(key, run_id, since)
        reply = await opened.__aenter__()  # a refusal is answered as one, before the stream begins

        async def close() -> None:
            await opened.__aexit__(None, None, None)

        return _ForwardedStream(_until_lost(reply), close)

    return router


def _rollout_routes(pages: Rollouts) -> APIRouter:
    router = APIRouter(prefix="/runs/{run_id}", default_response_class=HTMLResponse)

    @router.get("/rollouts")
    async def rollouts(run_id: str, request: Request, key: Key) -> str:
        """What a run has played, by the filters of the address."""
        return await pages.table(key, run_id, request.query_params)

    @router.get("/rollouts/{trajectory_id}")
    async def rollout(run_id: str, trajectory_id: str, key: Key) -> str:
        """One rollout, turn by turn, with its votes."""
        return await pages.one(key, run_id, trajectory_id)

    @router.get("/rollouts/{trajectory_id}/tokens")
    async def tokens(
        run_id: str, trajectory_id: str, key: Key, by: Text = "", form: Text = ""
    ) -> str:
        """The sampled tokens of a rollout, coloured `by` one of their numbers; `form` is a strip or a `table`."""
        return await pages.tokens(key, run_id, trajectory_id, by, form)

    @router.get("/groups/{group_id}")
    async def group(run_id: str, group_id: str, key: Key) -> str:
        """The rollouts of a group side by side."""
        return await pages.group(key, run_id, group_id)

    return router


class _ForwardedStream(StreamingResponse):
    """A stream that is forwarded; its source is closed whatever becomes of the reader, also one that leaves at once."""

    def __init__(self, parts: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(parts, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


async def _until_lost(reply: httpx.Response) -> AsyncIterator[bytes]:
    """The stream until it ends or breaks off; the browser takes it up again by itself."""
    try:
        async for part in reply.aiter_bytes():
            yield part
    except LOST:
        return
