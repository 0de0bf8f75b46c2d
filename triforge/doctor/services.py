"""The services of a deployment and the engines behind them, as they answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from triforge import __version__
from triforge.clients.transport import bearer
from triforge.config import Settings
from triforge.config.base import by_name
from triforge.doctor.local import Finding, bad, ok, warning, weights

LONG_S = 300.0  # that a job waits
_SKEW_S, _FAR_S = 5.0, 60.0  # leases last about ten seconds, records are ordered by the clock


def clock(whose: str, skew_s: float, *, blur_s: float = 0.0) -> Finding:
    """How far another machine's clock is from ours, in seconds; `blur_s` of it mean nothing."""
    said = f"{whose} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine"
    mend = "let a time service (chrony, systemd-timesyncd) set the clocks of both machines"
    away = abs(skew_s) - blur_s
    if away <= _SKEW_S:
        return ok("clock", f"{whose} agrees within {_SKEW_S:.0f} s")
    return (bad if away > _FAR_S else warning)("clock", said, mend)


_ENGINES = ("engines", "policy_engines", "reward_engines", "rewriter_engines")
_TIMEOUT_S = 5.0
_DATE_S = 1.0  # a Date header names whole seconds


async def services(
    settings: Settings,
    *,
    names: Sequence[str] = (),
    now: Callable[[], float] = time.time,
    transport: httpx.AsyncBaseTransport | None = None,
    folders: bool = True,
) -> list[Finding]:
    """Every service: whether it answers, is ready, is of this version, keeps our time and, with `folders`, serves weights that can be read here."""
    async with httpx.AsyncClient(
        timeout=_TIMEOUT_S, trust_env=False, transport=transport
    ) as client:
        known = names or settings.services
        parts = await asyncio.gather(
            *(_service(client, name, settings, now, folders) for name in known),
            _key(client, settings),
        )
    return [finding for part in parts for finding in part]


async def _key(client: httpx.AsyncClient, settings: Settings) -> list[Finding]:
    """Whether the services take the key that the command line sends; nothing where none is asked for and none is sent."""
    key = settings.key.get_secret_value()
    for name, path in (("env_adapter", "/v1/pools?limit=1"), ("trainer", "/v1/runs?limit=1")):
        url = settings.url(name)
        try:
            reply = await client.get(f"{url}{path}", headers=bearer(key))
        except httpx.HTTPError:
            return []  # said already
        if reply.status_code == 401:
            said = _object(reply).get("detail", "the key is refused")
            mend = "make one where the database can be reached: `triforge key create NAME`; put it into TRIFORGE_KEY"
            return [bad("key", f"{name}: {said}", mend)]
    return [ok("key", "the services take it")] if key else []


async def _service(
    client: httpx.AsyncClient,
    name: str,
    settings: Settings,
    now: Callable[[], float],
    folders: bool,
) -> list[Finding]:
    base = settings.url(name).partition("#")[0].rstrip("/")
    option = f"TRIFORGE_{name.upper()}_URL"
    asked = now()
    try:
        alive = await client.get(f"{base}/healthz")
        answered_at = now()  # whether it is ready may take it seconds to say
        ready = await client.get(f"{base}/readyz")
    except httpx.HTTPError as error:
        said = f"{base}: no answer ({type(error).__name__})"
        return [bad(f"service {name}", said, _mend_silence(error, option))]
    version = _object(alive).get("version")
    if alive.status_code == 404 or version is None:
        if name == "rewriter_model":  # any server that speaks OpenAI's dialect may stand there
            return [ok(f"service {name}", f"{base}: another server answers")]
        return [bad(f"service {name}", f"{base}: something else answers there", f"set {option}")]
    found = []
    if ready.status_code == 200:
        found.append(ok(f"service {name}", f"{base}: ready"))
    else:
        detail = _object(ready).get("detail", f"status {ready.status_code}")
        mend = "look at what it waits for; its log says more"
        found.append(bad(f"service {name}", f"{base}: not ready: {detail}", mend))
    if version != __version__:
        said = f"{name} is of triforge {version}, this is {__version__}"
        found.append(bad("version", said, "install the same version everywhere"))
    if "date" in alive.headers:
        theirs = parsedate_to_datetime(alive.headers["date"]).timestamp()
        ours, blur_s = (asked + answered_at) / 2, _DATE_S + (answered_at - asked) / 2
        seen = clock(f"service {name}", theirs - ours, blur_s=blur_s)
        found += [seen] if seen.state != "ok" else []
    trained = name in (f"{role}_model" for role in settings.trained)
    if folders and trained and ready.status_code == 200:
        found += await _served(client, name, base, settings.key.get_secret_value())
    return found


def _mend_silence(error: httpx.HTTPError, option: str) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"it hangs, or a firewall swallows what is sent: look at its log and restart it, or set {option}"
    return f"start it, or set {option}"


async def _served(client: httpx.AsyncClient, name: str, base: str, key: str) -> list[Finding]:
    """The folder that a policy service serves, where this machine should be able to read it."""
    try:
        reply = await client.get(f"{base}/v1/weights", headers=bearer(key))
        folder = _object(reply).get("uri", "")
    except httpx.HTTPError:
        return []
    if not folder or not Path(folder).is_absolute():
        return []
    seen = weights(f"service {name}", Path(folder))
    if seen.state == "ok" or (Path(folder) / "adapter_config.json").is_file():
        return []
    mend = (
        "mount the folder of the weights in the policy service, in its engines, in the learners and here, at the same place; "
        "if it is damaged, bring it back from the backup or take the model back with `triforge run rollback`"
    )
    return [warning(seen.check, seen.said, mend)]


async def engines(settings: Settings) -> list[Finding]:
    """Engines that the environment names: whether they answer and take our key. Others are their policy service's business."""
    lists = [str(getattr(settings, name)) for name in _ENGINES if name in settings.model_fields_set]
    lists += by_name(settings.model_engines).values()
    named = {url.strip() for url in ",".join(lists).split(",")}
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
        urls = sorted(url for url in named if url.startswith("http"))
        return [await _engine(client, url, settings) for url in urls]


async def _engine(client: httpx.AsyncClient, url: str, settings: Settings) -> Finding:
    check = f"engine {url}"
    key = settings.api_key.get_secret_value()
    try:
        reply = await client.get(f"{url}/model_info", headers=bearer(key))
    except httpx.HTTPError as error:
        said = f"no answer ({type(error).__name__})"
        return bad(check, said, _mend_silence(error, "TRIFORGE_ENGINES to those that run"))
    if reply.status_code in (401, 403):
        return bad(check, "refuses the key", "set TRIFORGE_API_KEY to the engine's --api-key")
    if reply.status_code != 200:
        mend = "wait until its model is loaded; its log says more"
        return bad(check, f"not ready: status {reply.status_code}", mend)
    return ok(check, f"ready, weight version {_object(reply).get('weight_version', 'unknown')}")


def _object(reply: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(reply.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
