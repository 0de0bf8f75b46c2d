"""The REST API of the sidecar, and the rights that each route needs.

A draw and a report are repeatable, so a client answers every failure by sending the same again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Response

from services.env_adapter.sidecar.curriculum import curriculum
from services.env_adapter.sidecar.store import Place, SidecarStore
from triforge.access.callers import Rule
from triforge.broker import SessionLog
from triforge.rollout.transcript import trajectory_id
from triforge.store.database import Database
from triforge.types import (
    CreditReport,
    Curriculum,
    Draw,
    DrawRequest,
    Report,
    ReportReply,
    RolloutCredit,
    RolloutReply,
    StepCredit,
    TrajectoryVotes,
)
from triforge.types.sidecar import MAX_DRAWN, MAX_MESSAGES
from triforge.web.bodies import body_of, described
from triforge.web.description import answers

REPORT: Final = "POST /v1/pools/{pool}/rollouts"
NUMBERS: Final = MAX_DRAWN * MAX_MESSAGES  # rewards of a report
RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/pools/{pool}/draw": Rule(requires="submit"),
    REPORT: Rule(requires="submit"),
    "GET /v1/pools/{pool}/curriculum": Rule(requires="read"),
}
_POLL_S: Final = 0.25
_WAITING: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": ReportReply, "description": "Some wait: send the report again"}
}

Lease = Annotated[str | None, Header(alias="idempotency-key", max_length=150)]


class Sidecar:
    """The routes that another trainer uses."""

    def __init__(self, database: Database, log: SessionLog) -> None:
        self._store, self._database, self._log = SidecarStore(database), database, log

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/pools/{pool}", tags=["sidecar"])
        router.post("/draw", responses=answers(404, 409, 429))(self.draw)
        body = described(Report)
        router.post("/rollouts", openapi_extra=body, responses=_WAITING | answers(404, 409))(
            self.report
        )
        router.get("/curriculum", responses=answers(404, 409))(self.curriculum)
        return router

    async def draw(self, pool: str, request: DrawRequest, idempotency_key: Lease = None) -> Draw:
        """Draw up to `n` tasks, for their rollouts to be reported. The same Idempotency-Key returns the same tasks."""
        lease = f"draw:{idempotency_key or uuid.uuid4().hex}"
        return await asyncio.to_thread(self._store.draw, pool, request.n, lease)

    async def report(
        self, pool: str, body: Annotated[Report, Depends(body_of(Report))], response: Response
    ) -> ReportReply:
        """Report rollouts; return their votes, and the rewards and advantages of whole groups. Status 202 while some wait for the judge."""
        places = await asyncio.to_thread(self._store.report, pool, body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + body.wait_s
        while not (reply := await self._reply(places)).complete:
            if loop.time() >= deadline:
                await asyncio.to_thread(self._store.expect_run, pool)
                break
            await asyncio.sleep(_POLL_S)
        response.status_code = 200 if reply.complete else 202
        return reply

    async def curriculum(self, pool: str) -> Curriculum:
        """Return how the pool's tasks fit the trainer's policy, the newest rewrites, and the versions of policy and judge."""
        return await asyncio.to_thread(curriculum, self._database, pool)

    async def _reply(self, places: Sequence[Place]) -> ReportReply:
        names = list(dict.fromkeys(place.group_id for place in places if not place.replaced))
        found = zip(names, await self._log.broker.credits(names), strict=True)
        whole = {name: credit for name, credit in found if credit is not None}
        waiting = [p for p in places if not p.replaced and p.group_id not in whole]
        votes = await self._log.broker.votes([trajectory_id(p.group_id, p.index) for p in waiting])
        judged = {place.id: cast for place, cast in zip(waiting, votes, strict=True)}
        return ReportReply(
            complete=not waiting,
            rollouts=tuple(_reply_on(place, whole, judged.get(place.id)) for place in places),
            groups=tuple(credit.model_copy(update={"rollouts": ()}) for credit in whole.values()),
        )


def _reply_on(
    place: Place, whole: Mapping[str, CreditReport], votes: TrajectoryVotes | None
) -> RolloutReply:
    if place.replaced:
        return RolloutReply(id=place.id, group_id=place.group_id, state="replaced")
    if (known := whole.get(place.group_id)) is not None:
        credit = known.rollouts[place.index]
        return RolloutReply(id=place.id, group_id=place.group_id, state="credited", credit=credit)
    steps = tuple(
        StepCredit(votes=tuple(vote.value for vote in step.votes), score=step.score)
        for step in (votes.steps if votes else ())
    )
    return RolloutReply(
        id=place.id, group_id=place.group_id, state="waiting", credit=RolloutCredit(steps=steps)
    )
