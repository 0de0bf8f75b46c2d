"""The parts of a deployment that answer over the network: database, artifacts, Redis, services."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from triforge import __version__
from triforge.broker import QUEUES, RedisBroker
from triforge.clients.transport import bearer
from triforge.config import Settings
from triforge.doctor.local import Finding, weights
from triforge.errors import TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database

_LONG_S: Final = 300.0  # that a job waits
_TIMEOUT_S: Final = 5.0


def database(url: str) -> Finding:
    """Check that the database answers and has a schema of this version; blocking."""
    try:
        with contextlib.closing(Database(url)) as store:
            revision, head = store.schema()
    except UnavailableError as error:
        return Finding("database", "bad", error.detail, "start it, or set TRIFORGE_DATABASE_URL")
    except TriforgeError as error:
        mend = "set TRIFORGE_DATABASE_URL to one that this version can use"
        return Finding("database", "bad", error.detail, mend)
    if revision is None:
        return Finding("database", "ok", "is empty; the first service that starts fills it")
    return Finding("database", "ok", f"answers, schema {head}")


def artifacts(url: str) -> Finding:
    """Check that the artifact store can be written and read; make no folder; blocking."""
    mend = "make it writable, or set TRIFORGE_ARTIFACTS_URL"
    try:
        store = ArtifactStore(url)
        if store.is_local and not (folder := Path(store.root)).is_dir():
            above = next(place for place in (folder, *folder.parents) if place.exists())
            if not (above.is_dir() and os.access(above, os.W_OK)):
                return Finding("artifacts", "bad", f"{folder} cannot be made in {above}", mend)
            return Finding("artifacts", "ok", f"{folder} is made by the first service that starts")
        store.try_out()
    except TriforgeError as error:
        return Finding("artifacts", "bad", error.detail, mend)
    return Finding("artifacts", "ok", f"{store.root} can be written and read")


async def broker(settings: Settings) -> list[Finding]:
    """Check that Redis answers with these credentials and that no job waits for long."""
    redis = RedisBroker(settings.redis_url)
    findings = []
    try:
        for queue in QUEUES:
            oldest_s = await redis.oldest_s(queue)
            if oldest_s >= _LONG_S:
                text = f"{await redis.depth(queue)} jobs wait, the oldest for {oldest_s / 60:.0f} minutes"
                mend = f"start {queue} workers, or more; the log of one that runs says what it waits for"
                findings.append(Finding(f"queue {queue}", "warning", text, mend))
    except TriforgeError as error:
        mend = "start Valkey or Redis, or set TRIFORGE_REDIS_URL (redis://:password@host:port/0)"
        return [Finding("redis", "bad", error.detail, mend)]
    finally:
        await redis.close()
    return [Finding("redis", "ok", "answers"), *findings]


async def readiness(urls: Mapping[str, str]) -> dict[str, str]:
    """Return `ready` for each service, or the reason why it is not."""
    async with _client() as client:
        states = await asyncio.gather(*(_readiness(client, url) for url in urls.values()))
    return dict(zip(urls, states, strict=True))


async def _readiness(client: httpx.AsyncClient, url: str) -> str:
    try:
        reply = await client.get(f"{url}/readyz")
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if reply.status_code == 200:
        return "ready"
    return f"not ready: {_object(reply).get('detail', f'status {reply.status_code}')}"


async def services(settings: Settings, names: Iterable[str] = ()) -> list[Finding]:
    """Check that each service answers, is ready and of this version, and serves weights that can be read here."""
    async with _client() as client:
        parts = await asyncio.gather(
            *(_service(client, name, settings) for name in names or settings.services)
        )
    return [finding for part in parts for finding in part]


async def _service(client: httpx.AsyncClient, name: str, settings: Settings) -> list[Finding]:
    base, check = settings.url(name).partition("#")[0].rstrip("/"), f"service {name}"
    state, option = await _readiness(client, base), f"TRIFORGE_{name.upper()}_URL"
    if state.startswith("no answer"):
        mend = f"start it, or set {option}; its log says why it hangs"
        return [Finding(check, "bad", f"{base}: {state}", mend)]
    version = (await _document(client, f"{base}/healthz")).get("version")
    if version is None:  # any server with OpenAI's API may be the rewriter
        fits = name == "rewriter_model"
        text = f"{base}: another server answers"
        return [Finding(check, "ok" if fits else "bad", text, f"set {option}")]
    findings = [Finding(check, "ok", f"{base}: ready")]
    if state != "ready":
        mend = "mend what it waits for; its log says more"
        findings = [Finding(check, "bad", f"{base}: {state}", mend)]
    if version != __version__:
        text = f"{name} is of triforge {version}, this is {__version__}"
        findings.append(Finding("version", "bad", text, "install the same version everywhere"))
    if state == "ready" and name in {f"{role}_model" for role in settings.trained}:
        findings += await _weights(client, name, base, settings.key.get_secret_value())
    return findings


async def _weights(client: httpx.AsyncClient, name: str, base: str, key: str) -> list[Finding]:
    """Check the folder that a policy service serves, which this machine should be able to read."""
    document = await _document(client, f"{base}/v1/weights", key)
    if lost := document.get("lost"):
        text = f"{name} serves version {document.get('version')} from memory: {lost} has gone, no engine can load it again"
        mend = "bring it back from the backup, or serve another version: the next one of a run, or an older one by `triforge run rollback`"
        return [Finding(f"weights of service {name}", "warning", text, mend)]
    folder = Path(document.get("uri", ""))
    if not folder.is_absolute() or (folder / "adapter_config.json").is_file():
        return []
    finding = weights(f"service {name}", folder)
    if finding.state == "ok":
        return []
    mend = (
        "mount the folder of the weights in the policy service, in its engines, in the learners and here, at the same place; "
        "if it is damaged, bring it back from the backup or take the model back with `triforge run rollback`"
    )
    return [Finding(finding.check, "warning", finding.text, mend)]


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)


async def _document(client: httpx.AsyncClient, url: str, key: str = "") -> dict[str, Any]:
    """Return the JSON object at an address; empty if there is none."""
    try:
        return _object(await client.get(url, headers=bearer(key)))
    except httpx.HTTPError:
        return {}


def _object(reply: httpx.Response) -> dict[str, Any]:
    try:
        document = json.loads(reply.content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
