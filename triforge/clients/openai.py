"""An OpenAI-compatible endpoint as a `Generate`: text only, for the diagnosis, the rewriter and evaluations.

Such an endpoint returns no token ids, so its samples can be read but never trained on.
"""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from triforge.clients.transport import ServiceClient, UnreachableError, get_json, post_json
from triforge.errors import InputError, PolicyError, TriforgeError
from triforge.rollout.protocols import Generate
from triforge.types import ChatMessage, GenerateOutput, GenerateReply, GenerateRequest, VersionSpan

_FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


def is_openai_url(url: str) -> bool:
    """Return whether an address has a path (`.../v1`): an OpenAI-compatible endpoint has one, a policy service none."""
    return urlsplit(url).path.strip("/") != ""


class OpenAIGenerate(ServiceClient):
    """An OpenAI-compatible endpoint.

    Regular expressions are sent in the field `regex` that SGLang reads; an endpoint that refuses the field gets no further
    ones, so its answers must be parsed strictly. JSON schemas are sent as `response_format`.

    Args:
        base_url: up to and including `/v1`.
        model: its name there; empty takes the first that the endpoint lists.
        patience_s: seconds of further tries while the endpoint is away or busy.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        api_key: str = "",
        patience_s: float = 20.0,
        timeout_s: float = 300.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, timeout_s=timeout_s, api_key=api_key, transport=transport)
        self._model = model
        self._patience_s = patience_s
        self._takes_regex = True

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample.

        Raises:
            InputError: the endpoint refused the request, or it has prefix ids, which only a policy service can echo.
            PolicyError: the endpoint failed or is no OpenAI-compatible one.
            UnavailableError: no response within `patience_s`.
        """
        if request.prefix_ids:
            raise InputError(
                "prefix_ids: given, but an OpenAI-compatible endpoint takes messages only; use a policy service"
            )
        body = await self._body(request)
        try:
            return _reply(await self._complete(body))
        except InputError:
            if "regex" not in body:
                raise
        del body["regex"]
        reply = _reply(await self._complete(body))
        self._takes_regex = False  # without the field it succeeds
        return reply

    async def demand_answer(self) -> None:
        """Ask once whether the endpoint answers at all; UnavailableError if not."""
        try:
            await get_json(self._http, "/models", timeout_s=self._patience_s)
        except UnreachableError:
            raise
        except TriforgeError:
            pass  # it answers; not all list their models

    async def _complete(self, body: dict[str, Any]) -> Any:
        return await post_json(
            self._http, "/chat/completions", body, deadline_s=self._patience_s, repeatable=True
        )

    async def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": await self._name(),
            "messages": [message.model_dump() for message in request.messages],
            "n": request.n,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.regex is not None and self._takes_regex:
            body["regex"] = sampling.regex
        if sampling.json_schema is not None:
            schema = {"name": "answer", "schema": _schema(sampling.json_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    async def _name(self) -> str:
        if not self._model:
            listed = await get_json(self._http, "/models", deadline_s=self._patience_s)
            try:
                self._model = str(listed["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise PolicyError(
                    f"{self.base_url}: lists no models; give the model's name"
                ) from None
        return self._model


class Conversations:
    """A `Generate` of text only as the player of episodes: it keeps the conversations, and a token id stands for each.

    An episode sends the ids of its last reply and the new messages; the last id is the number of the conversation so far.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._begun: list[tuple[ChatMessage, ...]] = []

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample the next message of a conversation."""
        before = self._begun[request.prefix_ids[-1]] if request.prefix_ids else ()
        messages = (*before, *request.messages)
        whole = {"messages": messages, "prefix_ids": (), "after_system": False}
        (output,) = (await self._generate(request.model_copy(update=whole))).outputs
        self._begun.append((*messages, ChatMessage(role="assistant", content=output.text)))
        number = len(self._begun) - 1
        token = {
            "ids": (number,), "logprobs": (0.0,), "versions": (VersionSpan(version=0, start=0, end=1),),
        }  # fmt: skip
        outputs = (output.model_copy(update=token),)
        return GenerateReply(prompt_ids=request.prefix_ids or (number,), outputs=outputs)


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"json_schema: not JSON: {error}") from None


def _reply(document: Any) -> GenerateReply:
    try:
        outputs = tuple(
            GenerateOutput(
                text=choice["message"]["content"] or "",
                ids=(),
                logprobs=(),
                versions=(),
                finish=_FINISH.get(choice.get("finish_reason"), "abort"),
            )
            for choice in document["choices"]
        )
    except (KeyError, TypeError, ValueError):
        raise PolicyError(
            f"expected a chat completion, got {str(document)[:200]}; is the address right?"
        ) from None
    if not outputs:
        raise PolicyError("expected a chat completion, got one without choices")
    return GenerateReply(prompt_ids=(), outputs=outputs)
