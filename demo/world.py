"""Household games behind two HTTP routes: the world of the agents in `agents/`, as theirs might be anywhere."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from triforge.environments.registry import family
from triforge.rollout.protocols import Environment
from triforge.types import Params, Task


class World:
    """The games that go on: `POST /games` with a task begins one, `POST /games/{id}` with a text is a turn."""

    def __init__(self, options: Params) -> None:
        self._options = options
        self._games: dict[str, Environment] = {}
        self._names = map(str, itertools.count())

    async def begin(self, request: web.Request) -> web.Response:
        """Begin a game of the task."""
        task = Task.model_validate_json(await request.read())
        game = family(task.family).make(self._options)
        first, name = await game.reset(task, seed=0), next(self._names)
        self._games[name] = game
        return _seen(name, first.observation.text)

    async def turn(self, request: web.Request) -> web.Response:
        """Play one text and return the result."""
        name = request.match_info["name"]
        if name not in self._games:
            raise web.HTTPNotFound(text="there is no such game, or it has ended")
        found = await self._games[name].step((await request.json())["text"])
        if found.done:
            await self._games.pop(name).close()
        return _seen(name, found.observation.text, done=found.done, success=found.success is True)

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Yield the world's address, on a free port of this machine."""
        app = web.Application()
        app.add_routes([web.post("/games", self.begin), web.post("/games/{name}", self.turn)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()


def _seen(name: str, text: str, **more: Any) -> web.Response:
    return web.json_response({"id": name, "text": text, "done": False, "success": False} | more)
