"""The client: draws and reports that are repeated until they are answered, also while the sidecar restarts."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from urllib.parse import quote

import httpx

_WAIT_S = 30.0  # of one report, before it is sent again
_FIRST_S, _LONGEST_S = 0.2, 10.0  # pauses between tries
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class RefusedError(Exception):
    """A request that the sidecar refuses, with its reason; sending it again does not help."""


@dataclass(frozen=True)
class DrawnTask:
    """A task to play, once for each id in `rollouts`.

    `messages` ask for it, `task` is the pool's (`params`, `instruction`, `kind`, `version`), `options` are those of playing.
    """

    group_id: str
    rollouts: tuple[str, ...]
    messages: list[dict[str, Any]]
    task: dict[str, Any]
    options: dict[str, Any]
    purpose: str = "train"
    proposal_id: str | None = None


@dataclass
class Rollout:
    """An attempt of the policy at a task, under one of the task's ids, with `success`, `score`, `rewards` (one for each answer) or an `error`."""

    id: str
    messages: Sequence[dict[str, Any]] = ()
    success: bool | None = None
    score: float | None = None
    rewards: Sequence[float] = ()
    truncated: bool = False
    error: str = ""


@dataclass(frozen=True)
class Credit:
    """The credit of a rollout; lists have an entry for each answer.

    `reward` is the mean of `rewards`, which hold outcome and votes; None where nothing was measured. `reason` says why the loop of
    triforge would not train on it.
    """

    id: str
    reward: float | None = None
    reason: str = ""
    votes: list[list[int]] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)


class Sidecar:
    """A pool of a deployment that `triforge up --only tasks,judge` has started.

    Args:
        url: address of env_adapter.
        pool: id or name.
        key: a key of the deployment with the right to submit, if it asks for one.
        patience_s: seconds to go on while the sidecar does not answer, has no task, or judges.
    """

    def __init__(
        self, url: str, pool: str, *, key: str = "", patience_s: float = 1800.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=_WAIT_S + 60.0, transport=transport, trust_env=False
        )  # fmt: skip
        self._pool, self._patience_s = f"/v1/pools/{quote(pool, safe='')}", patience_s
        self._lot = random.Random()  # noqa: S311 (no secret); the global one is the trainer's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def draw(self, n: int) -> list[DrawnTask]:
        """Draw `n` tasks; wait until so many are free.

        Raises:
            RefusedError: no run of the pool waits for a trainer, for instance.
            TimeoutError: they were not there within `patience_s`.
        """
        drawn: list[DrawnTask] = []
        while len(drawn) < n:
            once = {"idempotency-key": uuid.uuid4().hex}
            found = self._ask("POST", "/draw", {"n": n - len(drawn)}, once).json()
            drawn += [_task(each) for each in found["tasks"]]
        return drawn

    def report(self, rollouts: Iterable[Rollout], *, policy_version: int) -> list[Credit]:
        """Report rollouts of a version of the policy, any number that rises; return their credit in the same order.

        Raises:
            RefusedError: an id is unknown, or its time was over and its task was given to others.
            TimeoutError: their groups were not whole and judged within `patience_s`.
        """
        body = {
            "policy_version": policy_version, "wait_s": _WAIT_S,
            "rollouts": [asdict(each) | {"messages": as_text(each.messages)} for each in rollouts],
        }  # fmt: skip
        until = time.monotonic() + self._patience_s
        while not (reply := self._ask("POST", "/rollouts", body).json())["complete"]:
            if time.monotonic() > until:
                raise TimeoutError(
                    "the groups of a report are not whole and judged; is every rollout of a draw reported, and do judge workers run?"
                )
        return [_credit(each) for each in reply["rollouts"]]

    def curriculum(self) -> dict[str, Any]:
        """Return how the tasks fit the policy: `band`, `proposals`, `newest` rewrites, `versions`, `step`."""
        found: dict[str, Any] = self._ask("GET", "/curriculum").json()
        return found

    def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request until it is answered."""
        until, pause = time.monotonic() + self._patience_s, _FIRST_S
        while True:
            try:
                reply = self._http.request(method, self._pool + path, json=body, headers=headers)
            except httpx.UnsupportedProtocol as error:
                raise RefusedError(
                    f"address of env_adapter: given {str(self._http.base_url)!r}: {error}"
                ) from None
            except httpx.TransportError as error:
                reason, wait = str(error) or type(error).__name__, 0.0
            else:
                if reply.is_success:
                    return reply
                reason, wait = _reason(reply), float(reply.headers.get("retry-after") or 0)
                if reply.status_code not in _PASSING and not _is_retryable(reply):
                    raise RefusedError(reason)
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{self._http.base_url}: no answer in {self._patience_s:g} s: {reason}"
                )
            time.sleep(max(wait, pause) * self._lot.uniform(0.8, 1.2))
            pause = min(2 * pause, _LONGEST_S)


def as_text(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of OpenAI's API with the fields that the sidecar reads: role, text and calls of tools."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        role = "system" if message["role"] == "developer" else message["role"]
        texts.append({"role": role, "content": content, **({"tool_calls": calls} if calls else {})})
    return texts


def _task(found: dict[str, Any]) -> DrawnTask:
    messages = [{"role": m["role"], "content": m["content"]} for m in found["messages"]]
    known = ("group_id", "task", "options", "purpose", "proposal_id")
    return DrawnTask(
        rollouts=tuple(found["rollouts"]),
        messages=messages,
        **{name: found[name] for name in known},
    )


def _credit(found: dict[str, Any]) -> Credit:
    credit, steps = found["credit"], found["credit"]["steps"]
    reason = "its group is played anew" if found["state"] == "replaced" else credit["reason"]
    return Credit(
        id=found["id"], reward=credit["reward"], reason=reason, votes=[s["votes"] for s in steps],
        rewards=[s["reward"] for s in steps], advantages=[s["advantage"] for s in steps],
    )  # fmt: skip


def _is_retryable(reply: httpx.Response) -> bool:
    """Return whether a conflict passes: the pool is paused."""
    return reply.status_code == 409 and _problem(reply).get("type") == "urn:triforge:paused"


def _reason(reply: httpx.Response) -> str:
    return str(_problem(reply).get("detail") or f"status {reply.status_code}")


def _problem(reply: httpx.Response) -> dict[str, Any]:
    try:
        found = reply.json()
    except json.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {}
