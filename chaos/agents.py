"""Agents that play in sessions while what they talk to dies: each reward that was acknowledged is on record once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict
from typing import Any, Final

import httpx

from chaos.evidence import Row
from chaos.rounds import Round
from chaos.waiting import until
from triforge.rollout.transcript import trajectory_id

_AGENTS, _TURNS = 16, 3
_AGAIN_S: Final = 0.2  # before a request that was not answered is sent again
_REQUEST_S: Final = 20.0
_DEADLINE_S: Final = (
    40.0  # of a session; the place of an agent that was killed is given away after that
)
_WATCH_S: Final = 90.0
_ALL = "everything"
_BLOWS = ("env_adapter", "policy-model", "engine-policy", "valkey", "rollout-worker", _ALL)


async def sessions(r: Round) -> None:
    """Agents play in sessions: some are killed, with env_adapter, the policy service, its engine, Valkey, a rollout worker, and all at once."""
    played = {"played_by": "sessions", "episode_deadline_s": _DEADLINE_S, "episode_retries": 5}
    await r.submit(run={"steps": len(_BLOWS) + 1, "eval_every": 0}, env_adapter=played)
    agents = Agents(r)
    blows = [*_BLOWS]
    r.rng.shuffle(blows)
    try:
        for step, name in enumerate(blows):
            await r.moment(step=step)
            agents.kill_one()
            names = r.stack.names() if name == _ALL else [name]
            due = r.stack.restarts(*names) + len(names)
            r.stack.kill(*names)
            back = await until(lambda n=names, d=due: r.stack.restarts(*n) >= d, within_s=_WATCH_S)  # type: ignore[misc]
            r.demand(back, f"{name} was not started again")
            r.moments.append(f"{name} and an agent killed")
        await r.end()
    finally:
        await agents.stop()
    r.moments.append(f"{len(agents.acknowledged)} rewards were acknowledged")
    if r.evidence is not None:
        places = r.store.rows('SELECT id, group_id, "index" FROM sessions WHERE run_id = ?', [r.run_id])  # fmt: skip
        r.wrong += lost(agents.acknowledged, agents.given, places, r.evidence.records)


def lost(
    acknowledged: dict[str, float], given: set[float], places: list[Row], records: list[Row]
) -> list[str]:
    """Return what is wrong with acknowledged rewards, by session, and with those that agents gave."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in records:
        found[row["trajectory_id"]].append(row)
    wrong = []
    names = {row["id"]: trajectory_id(row["group_id"], row["index"]) for row in places}
    for session_id, score in acknowledged.items():
        rows = found[names[session_id]]
        seen = sorted((row["step_index"], row["score"]) for row in rows)
        if seen != [(number, score) for number in range(_TURNS)]:
            wrong.append(
                f"rewards: session {session_id} was acknowledged with {score}, on record is {seen}"
            )
    strangers = {row["score"] for row in records if row["outcome"] is not None} - given
    return wrong + [f"rewards: on record is {score}, which no agent gave" for score in strangers]


class Agents:
    """Agents that ask three times a session, each request until it is answered, and then give a reward like no other.

    Attributes:
        acknowledged: scores whose receipt was confirmed, by session.
        given: all scores that were sent.
    """

    def __init__(self, r: Round) -> None:
        self.acknowledged: dict[str, float] = {}
        self.given: set[float] = set()
        self._rng, self._run_id, self._env = r.rng, r.run_id, r.stack.settings.env_adapter_url
        self._http = httpx.AsyncClient(timeout=_REQUEST_S, trust_env=False)
        self._tasks = [asyncio.create_task(self._play()) for _ in range(_AGENTS)]

    def kill_one(self) -> None:
        """Kill an agent in the middle of a request and start another."""
        place = self._rng.randrange(_AGENTS)
        self._tasks[place].cancel()
        self._tasks[place] = asyncio.create_task(self._play())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def _play(self) -> None:
        while True:
            made = await self._ask(f"{self._env}/v1/sessions", {"run": self._run_id})
            if made is None:  # the run is over, or an earlier try of this request took a place
                await asyncio.sleep(1.0)
                continue
            with contextlib.suppress(LookupError):  # its time was over, or its group is done
                await self._session(made["session"]["id"], made["base_url"], made["key"])

    async def _session(self, session_id: str, url: str, key: str) -> None:
        messages = [{"role": "user", "content": "go to fridge"}]
        for _ in range(_TURNS):
            answer = await self._ask(f"{url}/chat/completions", {"model": "m", "messages": messages}, key)  # fmt: skip
            if answer is None:
                raise LookupError
            reply_text = answer["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": reply_text}, {"role": "user", "content": "go on"}]  # fmt: skip
        score = self._rng.random()
        self.given.add(score)
        body = {"score": score, "success": score > 0.5}
        if await self._ask(f"{self._env}/v1/sessions/{session_id}/reward", body, key) is not None:
            self.acknowledged[session_id] = score

    async def _ask(self, url: str, body: Any, key: str = "") -> Any:
        """Return the answer, with retries; None if the session or the run is over."""
        headers = {"idempotency-key": uuid.uuid4().hex} | (
            {"authorization": f"Bearer {key}"} if key else {}
        )
        while True:
            with contextlib.suppress(httpx.HTTPError):
                reply = await self._http.post(url, json=body, headers=headers)
                if reply.is_success:
                    return reply.json()
                if reply.status_code not in (429, 500, 502, 503, 504):
                    return None
            await asyncio.sleep(_AGAIN_S)
