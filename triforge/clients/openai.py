"""Any OpenAI-compatible endpoint as a `Generate`: text only, for the diagnosis and the rewriter.

Such an endpoint gives back no token ids, so what it samples can be read but never trained on.
"""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from triforge.clients.transport import get_json, http_client, post_json
from triforge.errors import InputError, PolicyError
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest

PATIENCE_S = 20.0
TIMEOUT_S = 300.0

_FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


def is_openai_url(url: str) -> bool:
    """Whether an address names an OpenAI-compatible endpoint: it has a path (`.../v1`), a policy service has none."""
    return urlsplit(url).path.strip("/") != ""


class OpenAIGenerate:
    """An OpenAI-compatible endpoint. One a process and event loop; close it.

    Regular expressions travel in the field `regex` that SGLang reads; an endpoint that refuses the field is asked without
    it from then on, so its answers must be read strictly. JSON schemas travel as `response_format`.

    Args:
        base_url: up to and including `/v1`.
        model: its name there; empty takes the first that the endpoint lists.
        patience_s: how long to go on trying while the endpoint is away or busy.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        *,
        api_key: str = "",
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(
            base_url, timeout_s=timeout_s, transport=transport, api_key=api_key
        )
        self._model = model
        self._patience_s = patience_s
        self._takes_regex = True

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample.

        Raises:
            InputError: the endpoint refused the request, or it has prefix ids, which only a policy service can echo.
            PolicyError: the endpoint failed or answers something else.
            UnavailableError: nothing answers until the patience ends.
        """
        if request.prefix_ids:
            raise InputError(
                "prefix_ids: given, but an OpenAI-compatible endpoint takes messages only; use a policy service"
            )
        body = await self._body(request)
        try:
            return _reply(await self._post(body))
        except InputError:
            if "regex" not in body:
                raise
        del body["regex"]
        reply = _reply(await self._post(body))
        self._takes_regex = False  # it was the field that was refused
        return reply

    async def _post(self, body: dict[str, Any]) -> Any:
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
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": _schema(sampling.json_schema)},
            }
        return body

    async def _name(self) -> str:
        if not self._model:
            listed = await get_json(self._http, "/models", deadline_s=self._patience_s)
            try:
                self._model = str(listed["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise PolicyError(
                    f"{self._http.base_url}: lists no models; give the model's name"
                ) from None
        return self._model


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
        raise PolicyError("the endpoint answered without any choice")
    return GenerateReply(prompt_ids=(), outputs=outputs)
