"""OpenEnv servers as an environment family: one session over a WebSocket an episode."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from pydantic import Field, JsonValue

from triforge.environments.egress import EgressPolicy, here, place_of
from triforge.environments.kit import Answer, Family, Strict, parse_model, part_of
from triforge.environments.registry import About
from triforge.errors import EnvError, ObservationError
from triforge.json_text import written
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.rollout.seeds import derive_seed
from triforge.types import Params, reported

_MAX_MESSAGE: Final = 64 * 2**20  # bytes; observations may hold screenshots
_REFUSALS: Final = ("VALIDATION_ERROR", "INVALID_JSON")
# Errors of a call to a server of another protocol, or to one that breaks off.
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)
_INSTRUCTION: Final = "Do what the environment asks for."
_MOST_IMAGES: Final = 16  # of one observation
_FILES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # the first bytes of PNG and JPEG files
_NO_ACTION: Final = "That is no action."


class EpisodeParams(Strict):
    """An episode: the server, the arguments of its reset, and its end.

    `success` is the sum of rewards from which a finished episode is a success; `instruction` announces the task where the
    server's own observation does not.
    """

    url: str = Field(pattern=r"^https?://[^\s/]+[^\s]*$", max_length=500)
    reset: dict[str, JsonValue] = Field(default_factory=dict)
    instruction: str = Field(default=_INSTRUCTION, min_length=1, max_length=4000)
    success: float = 1.0
    horizon: int = Field(default=50, ge=1, le=10_000)


class GeneratorOptions(EpisodeParams):
    """Options of the generator, whose episodes differ in the seed of their reset.

    The seeds count up from `first_seed`; without one, from a place that follows from the pool's own seed.
    """

    first_seed: int | None = Field(default=None, ge=0)


class PlayOptions(Strict):
    """Options of a run; README.md explains each."""

    answer: Answer = "whole"
    field: str = "text"
    images: bool = False
    timeout_s: float = Field(default=60.0, gt=0, le=3600)


class RefusedError(EnvError):
    """An action that the server refused as malformed; its session goes on."""


class RemoteEpisode:
    """An episode on a server, over a WebSocket; `egress` says which servers may be reached."""

    def __init__(
        self, params: EpisodeParams, options: PlayOptions, egress: EgressPolicy, seed: int
    ) -> None:
        self.done = False
        self._params, self._options, self._egress, self._seed = params, options, egress, seed
        self._url = params.url.rstrip("/")
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._schema: dict[str, Any] = {}
        self._earned = 0.0
        self._steps = 0

    async def start(self) -> Reset:
        await self._connect()
        data = {"seed": self._seed % 2**31, **self._params.reset}
        seen = (await self._ask("reset", data))["observation"]
        system = seen.get("system")
        text = f"{self._params.instruction}\n{self._shown(seen)}"
        return Reset(
            observation=self._observed(text, seen), system=system if isinstance(system, str) else ""
        )

    async def play(self, response: str) -> StepResult:
        text = part_of(response, self._options.answer).strip()
        action = action_of(text, self._schema)
        self._steps += 1
        reply: dict[str, Any] | None = None
        if action is not None:
            try:
                reply = await self._ask("step", action)
            except RefusedError:
                reply = None
        seen = reply["observation"] if reply else {}
        self._earned += self._reward(reply or {})
        over = bool(reply and reply.get("done"))
        self.done = over or self._steps >= self._params.horizon
        return StepResult(
            observation=self._observed(self._shown(seen) if reply else _NO_ACTION, seen),
            action=text[:2000],
            action_valid=reply is not None and seen.get("action_valid") is not False,
            done=self.done,
            success=over and self._earned >= self._params.success,
        )

    def _reward(self, reply: dict[str, Any]) -> float:
        reward = reply.get("reward")
        try:
            return 0.0 if reward is None else reported(reward, f"openenv: {self._url} gave")
        except ValueError as error:
            raise ObservationError(str(error)) from None

    async def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        socket, self._socket = self._socket, None
        http, self._http = self._http, None
        if socket is not None:
            await socket.close()
        if http is not None:
            await http.close()

    async def _connect(self) -> None:
        """Open a session and read the schema of the server's actions."""
        self._http = self._egress.session(*place_of(self._url), timeout_s=self._options.timeout_s)
        try:
            async with self._http.get(f"{self._url}/schema") as reply:
                reply.raise_for_status()
                self._schema = (await reply.json())["action"]
            self._socket = await self._http.ws_connect(f"{self._url}/ws", max_msg_size=_MAX_MESSAGE)
        except _FAILURES as error:
            await self.leave(sound=False)
            raise EnvError(
                f"openenv: no OpenEnv server answers at {self._url} ({type(error).__name__}: {error}); start one, "
                "for example: triforge env serve household"
            ) from error

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise EnvError("openenv: the session is closed")
        try:
            await self._socket.send_str(json.dumps({"type": kind, "data": data}))
            async with asyncio.timeout(self._options.timeout_s):
                reply = json.loads(await self._socket.receive_str())
            answer: dict[str, Any] = reply["data"]
            is_error = reply["type"] == "error"
        except _FAILURES as error:
            raise EnvError(
                f"openenv: {self._url} did not answer {kind!r}: {type(error).__name__}: {error}"
            ) from error
        if is_error:
            code = answer.get("code")
            kind_of_error = RefusedError if code in _REFUSALS else EnvError
            raise kind_of_error(f"openenv: {self._url}: {code}: {answer.get('message')}")
        return answer

    def _observed(self, text: str, seen: dict[str, Any]) -> Observation:
        admissible = seen.get("admissible")
        words = admissible if isinstance(admissible, list) else []
        return Observation(
            text=text,
            images=_images(seen) if self._options.images else (),
            admissible=tuple(one for one in words if isinstance(one, str) and one),
        )

    def _shown(self, seen: dict[str, Any]) -> str:
        text = seen.get(self._options.field)
        if isinstance(text, str) and text:
            return text
        return json.dumps({k: v for k, v in seen.items() if k != "images"}, ensure_ascii=False)


def action_of(text: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a response as an action: a JSON object as it stands, else the value of the only required field.

    Returns:
        None when the schema asks for several fields and the response is no JSON object.
    """
    required = schema.get("required") or []
    if len(required) == 1:
        kind = (schema.get("properties") or {}).get(required[0], {}).get("type")
        if kind == "string":
            return {required[0]: text}
    try:
        value = written(text)
    except ValueError:
        value = text
    if isinstance(value, dict):
        return value
    return {required[0]: value} if len(required) == 1 else None


def _images(seen: dict[str, Any]) -> tuple[bytes, ...]:
    images = seen.get("images") or []
    if not isinstance(images, list) or len(images) > _MOST_IMAGES:
        raise EnvError(
            f"openenv: images of an observation: expected a list of at most {_MOST_IMAGES}"
        )
    try:
        files = tuple(base64.b64decode(one, validate=True) for one in images)
    except (TypeError, ValueError) as error:
        raise EnvError(f"openenv: an image of an observation is no base64: {error}") from None
    if not all(file.startswith(_FILES) for file in files):
        raise EnvError("openenv: an image of an observation is neither PNG nor JPEG")
    return files


class OpenEnvFamily(Family[EpisodeParams, PlayOptions]):
    """The family `openenv`; README.md explains it."""

    name = "openenv"
    about = About(
        what="any OpenEnv server, by its address",
        tasks="the server's",
        licence="Apache-2.0 (own client)",
    )
    params, play_options = EpisodeParams, PlayOptions
    never_blocks = True  # it only waits for the network

    def __init__(self, egress: Callable[[], EgressPolicy] = here) -> None:
        self._egress = egress

    def instruction(self, given: EpisodeParams) -> str:
        return given.instruction

    def kind(self, given: EpisodeParams) -> str:  # noqa: ARG002
        return "openenv"

    def check(self, given: EpisodeParams) -> None:
        """Refuse a server that the deployment may not reach."""
        self._egress().demand(*place_of(given.url), "openenv params: field url")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "openenv generate")
        shared = wanted.model_dump(mode="json", exclude={"first_seed", "reset"})
        first = derive_seed("openenv", seed) if wanted.first_seed is None else wanted.first_seed
        return [
            {**shared, "reset": {**wanted.reset, "seed": first + number}} for number in range(count)
        ]

    def begin(
        self, given: EpisodeParams, options: PlayOptions, _announced: str, seed: int
    ) -> RemoteEpisode:
        return RemoteEpisode(given, options, self._egress(), seed)


FAMILY: Final = OpenEnvFamily()
