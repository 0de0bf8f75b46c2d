"""OpenEnv servers as an environment family: one session over a WebSocket an episode."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
from pydantic import Field, JsonValue

from triforge.environments.egress import EgressPolicy, here, place_of
from triforge.environments.kit import (
    Answer,
    NeverRewritten,
    Strict,
    expect_announced,
    parse_model,
    part_of,
)
from triforge.environments.registry import About
from triforge.errors import EnvError
from triforge.rollout.protocols import Environment, Observation, Reset, StepResult, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import Params, Task

_MAX_MESSAGE: Final = 64 * 2**20  # bytes; observations may hold screenshots
_REFUSALS: Final = ("VALIDATION_ERROR", "INVALID_JSON")
# What a server that is none, or that breaks off, makes of a call.
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)


class RefusedError(EnvError):
    """The server says that what it was sent is malformed; it has done nothing, and the session goes on."""


class SessionClient:
    """Asks one question at a time."""

    def __init__(self, url: str, *, timeout_s: float, egress: EgressPolicy) -> None:
        self._url = url.rstrip("/")
        self._egress = egress
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> dict[str, Any]:
        """Connect; returns the schema of the server's actions."""
        self._http = self._egress.session(*place_of(self._url), timeout_s=self._timeout_s)
        try:
            async with self._http.get(f"{self._url}/schema") as reply:
                reply.raise_for_status()
                schema = await reply.json()
            self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=_MAX_MESSAGE)
            action: dict[str, Any] = schema["action"]
        except _FAILURES as error:
            await self.close()
            raise EnvError(
                f"openenv: no OpenEnv server answers at {self._url} ({type(error).__name__}: {error}); start one, "
                "for example: triforge env serve household"
            ) from error
        return action

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise EnvError("openenv: the session is closed")
        try:
            await self._socket.send_str(json.dumps(message))
            async with asyncio.timeout(self._timeout_s):
                reply = json.loads(await self._socket.receive_str())
            kind, data = reply["type"], reply["data"]
        except _FAILURES as error:
            raise EnvError(
                f"openenv: {self._url} did not answer {message['type']!r}: {type(error).__name__}: {error}"
            ) from error
        if kind == "error":
            code = data.get("code")
            kind_of_error = RefusedError if code in _REFUSALS else EnvError
            raise kind_of_error(f"openenv: {self._url}: {code}: {data.get('message')}")
        found: dict[str, Any] = data
        return found

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        http, self._http = self._http, None
        if socket is not None:
            await socket.close()
        if http is not None:
            await http.close()


_INSTRUCTION: Final = "Do what the environment asks for."
_MOST_IMAGES: Final = 16  # of one observation
_FILES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # how PNG and JPEG files begin
_NO_ACTION: Final = "That is no action."


class EpisodeParams(Strict):
    """An episode: the server, what its reset is given, and when it counts as won.

    `success` is the sum of rewards from which a finished episode is a success; `instruction` announces the task where the
    server's own observation does not.
    """

    url: str = Field(pattern=r"^https?://[^\s/]+[^\s]*$", max_length=500)
    reset: dict[str, JsonValue] = Field(default_factory=dict)
    instruction: str = Field(default=_INSTRUCTION, min_length=1, max_length=4000)
    success: float = 1.0
    horizon: int = Field(default=50, ge=1, le=10_000)


class GeneratorOptions(Strict):
    """What episodes are generated: `count` of them, all with the same settings.

    The server is reset with seeds from `first_seed` on; without one, from a place that follows from the pool's own seed.
    """

    url: str
    reset: dict[str, JsonValue] = Field(default_factory=dict)
    instruction: str = _INSTRUCTION
    success: float = 1.0
    horizon: int = 50
    first_seed: int | None = Field(default=None, ge=0)


class PlayOptions(Strict):
    """How an episode is played; README.md explains each option."""

    answer: Answer = "whole"
    field: str = "text"
    images: bool = False
    timeout_s: float = Field(default=60.0, gt=0, le=3600)


class RemoteEpisode:
    """An environment behind a WebSocket; `reach` says what may be connected to."""

    def __init__(self, options: PlayOptions, egress: EgressPolicy) -> None:
        self._options = options
        self._egress = egress
        self._client: SessionClient | None = None
        self._used = False
        self._done = False
        self._schema: dict[str, Any] = {}
        self._given = EpisodeParams(url="http://nowhere")
        self._earned = 0.0
        self._steps = 0

    async def reset(self, task: Task, *, seed: int) -> Reset:
        if self._used:
            raise EnvError("openenv: an environment plays one episode; make a fresh one to reset")
        self._used = True
        self._given = parse_model(EpisodeParams, task.params, "openenv params")
        expect_announced("openenv", task, self._given.instruction)
        self._client = SessionClient(
            self._given.url, timeout_s=self._options.timeout_s, egress=self._egress
        )
        self._schema = await self._client.open()
        data = {"seed": seed % 2**31, **self._given.reset}
        seen = (await self._client.ask({"type": "reset", "data": data}))["observation"]
        system = seen.get("system")
        text = f"{self._given.instruction}\n{self._shown(seen)}"
        return Reset(
            observation=self._observed(text, seen), system=system if isinstance(system, str) else ""
        )

    async def step(self, response: str) -> StepResult:
        if self._client is None or self._done:
            raise EnvError(
                "openenv: step after the end or before reset; the episode is not running"
            )
        said = part_of(response, self._options.answer).strip()
        action = action_of(said, self._schema)
        self._steps += 1
        if action is None:
            return self._end(said, {}, valid=False, done=False, text=_NO_ACTION)
        try:
            data = await self._client.ask({"type": "step", "data": action})
        except RefusedError:  # the policy's doing, not the server's
            return self._end(said, {}, valid=False, done=False, text=_NO_ACTION)
        seen = data["observation"]
        self._earned += float(data.get("reward") or 0.0)
        valid = seen.get("action_valid")
        return self._end(said, seen, valid=valid is not False, done=bool(data.get("done")), text="")

    def _end(
        self, said: str, seen: dict[str, Any], *, valid: bool, done: bool, text: str
    ) -> StepResult:
        self._done = done or self._steps >= self._given.horizon
        return StepResult(
            observation=self._observed(text or self._shown(seen), seen),
            action=said[:2000],
            action_valid=valid,
            done=self._done,
            success=done and self._earned >= self._given.success,
        )

    async def close(self) -> None:
        self._used = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _observed(self, text: str, seen: dict[str, Any]) -> Observation:
        images = _images(seen) if self._options.images else ()
        return Observation(text=text, images=images, admissible=_admissible(seen))

    def _shown(self, seen: dict[str, Any]) -> str:
        found = seen.get(self._options.field)
        if isinstance(found, str) and found:
            return found
        return json.dumps({k: v for k, v in seen.items() if k != "images"}, ensure_ascii=False)


def action_of(said: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """A response as an action: a JSON object as it stands, else the value of the only required field.

    Returns:
        None when the schema asks for several fields and the response is no JSON object.
    """
    required = schema.get("required") or []
    if len(required) == 1:
        kind = (schema.get("properties") or {}).get(required[0], {}).get("type")
        if kind == "string":
            return {required[0]: said}
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = said
    if isinstance(found, dict):
        return found
    return {required[0]: found} if len(required) == 1 else None


def _images(seen: dict[str, Any]) -> tuple[bytes, ...]:
    found = seen.get("images") or []
    if not isinstance(found, list) or len(found) > _MOST_IMAGES:
        raise EnvError(
            f"openenv: images of an observation: expected a list of at most {_MOST_IMAGES}"
        )
    try:
        files = tuple(base64.b64decode(one, validate=True) for one in found)
    except (TypeError, ValueError) as error:
        raise EnvError(f"openenv: an image of an observation is no base64: {error}") from None
    if not all(file.startswith(_FILES) for file in files):
        raise EnvError("openenv: an image of an observation is neither PNG nor JPEG")
    return files


def _admissible(seen: dict[str, Any]) -> tuple[str, ...]:
    found = seen.get("admissible")
    return (
        tuple(one for one in found if isinstance(one, str) and one)
        if isinstance(found, list)
        else ()
    )


class OpenEnvFamily(NeverRewritten):
    """The family `openenv`; see README.md beside this file."""

    name = "openenv"
    about = About(
        what="any OpenEnv server, by its address",
        tasks="the server's",
        licence="Apache-2.0 (own client)",
    )
    never_blocks = True  # it only waits for the network

    def __init__(self, egress: Callable[[], EgressPolicy] = here) -> None:
        self._egress = egress

    def validate(self, params: Params) -> TaskDraft:
        given = parse_model(EpisodeParams, params, "openenv params")
        self._egress().demand(*place_of(given.url), "openenv params: field url")
        return TaskDraft(
            params=given.model_dump(mode="json"), instruction=given.instruction, kind="openenv"
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "openenv generate")
        shared = wanted.model_dump(mode="json", exclude={"first_seed", "reset"})
        first = derive_seed("openenv", seed) if wanted.first_seed is None else wanted.first_seed
        return [
            {**shared, "reset": {**wanted.reset, "seed": first + number}} for number in range(count)
        ]

    def make(self, options: Params) -> Environment:
        return RemoteEpisode(parse_model(PlayOptions, options, "openenv options"), self._egress())

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:  # noqa: ARG002
        return None


FAMILY: Final = OpenEnvFamily()
