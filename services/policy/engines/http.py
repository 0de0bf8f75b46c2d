"""The parts that engines behind HTTP share: connections, errors that name the engine, and the routes that all of them have."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

from services.policy.engines.answers import is_too_long
from triforge.clients.transport import UnreachableError, get_json, http_client, parse_json, request
from triforge.errors import (
    ConfigError,
    ContextFullError,
    InputError,
    NotFoundError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)

TIMEOUT_S = 600.0  # a long answer on a busy CPU engine, or reading a large weight folder
PAUSE_TIMEOUT_S = 60.0  # the end of a decoding step; an engine that takes longer hangs
PROBE_TIMEOUT_S = 10.0


class HttpEngine:
    """Base of the clients of one engine.

    `admin_api_key` (or, if empty, `api_key`) is that of the weight and pause routes. `timeout_s` is the longest silence
    while an answer is awaited, and `load_s`, if that is longer, while weights are read.
    """

    scheme = ""  # before the address in `url`, to tell kinds of engines apart
    speaks = ""  # the API that it is asked in
    keys = ""  # which of our settings are which of its options

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        admin_api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        max_connections: int = 512,
        timeout_s: float = TIMEOUT_S,
        load_s: float = TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/")
        address = self.url.removeprefix(self.scheme)

        def client(timeout_s: float, connections: int, key: str) -> httpx.AsyncClient:
            return http_client(
                address, timeout_s=timeout_s, transport=transport, max_connections=connections, api_key=key
            )  # fmt: skip

        self._data = client(timeout_s, max_connections, api_key)
        # Apart from the data connections, so that a pause is never queued behind the requests it should hold.
        self._control = client(max(timeout_s, load_s), 8, admin_api_key or api_key)
        # Engines describe themselves to the key of the generate routes only.
        self._inform = client(PROBE_TIMEOUT_S, 4, api_key)
        # Requests find only what was cached for the same key. It changes with weights that leave the cache as it was: a
        # number of the version would not do, as one that failed may come again.
        self._cache_key = uuid.uuid4().hex

    async def close(self) -> None:
        """Close all connections."""
        for client in (self._data, self._control, self._inform):
            await client.aclose()

    def _leave_cache(self, flush: bool) -> None:
        """Give later requests another cache key, before weights are loaded that do not flush the cache."""
        if not flush:
            self._cache_key = uuid.uuid4().hex

    async def _models(self) -> list[dict[str, Any]]:
        """Return the cards of the model and of its adapters; an adapter has a parent."""
        cards = (await self._get("/v1/models")).get("data")
        return [card for card in cards or () if isinstance(card, dict)]

    async def adapters(self) -> dict[str, str]:
        """Return the adapters that it holds, and their folders."""
        return {str(c.get("id")): str(c.get("root")) for c in await self._models() if c.get("parent")}  # fmt: skip

    async def _get(self, path: str, timeout_s: float | None = None) -> dict[str, Any]:
        with self._named():
            answer = await get_json(self._inform, path, timeout_s=timeout_s)
            if not isinstance(answer, dict):
                raise PolicyError(f"engine {self.url}: {path} answered {answer!r:.120}")
            return answer

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Call one of the routes that pause, load and inform. Raises InputError if the engine refuses."""
        with self._named():
            answer = await request(self._control, "POST", path, body=body, timeout_s=timeout_s)
            return parse_json(answer) if answer.content else None

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the engine in every failure; one that is no refusal and no absence is the engine's fault."""
        where = f"engine {self.url}"
        try:
            yield
        except (UnreachableError, WeightsError, PolicyError):
            raise
        except (InputError, UnavailableError) as error:
            kind = ContextFullError if is_too_long(error.detail) else type(error)
            raise kind(f"{where}: {error.detail}", retry_after_s=error.retry_after_s) from error
        except NotFoundError as error:
            raise PolicyError(f"{where}: {error.detail}; does it speak {self.speaks}?") from error
        except ConfigError as error:
            raise PolicyError(f"{where} refuses the key ({error.detail}): {self.keys}") from error
        except TriforgeError as error:
            raise PolicyError(f"{where}: {error.detail}") from error
