"""The routes of proposals, and the rights that each needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Query

from services.env_adapter.pools.changes import Change, Changes, Decision
from services.env_adapter.pools.store import PoolStore
from triforge.access.callers import Rule
from triforge.types import Page, Proposal, ProposalDetail, ProposalState
from triforge.web.description import answers

_READ: Final = Rule(requires="read")
_SUBMIT: Final = Rule(requires="submit")

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/pools/{pool}/proposals": _READ,
    "GET /v1/proposals/{proposal_id}": _READ,
    "POST /v1/proposals/{proposal_id}/approve": _SUBMIT,
    "POST /v1/proposals/{proposal_id}/reject": _SUBMIT,
}


def proposal_routes(store: PoolStore, changes: Changes) -> APIRouter:
    """Return the routes of proposals."""
    router = APIRouter(prefix="/v1", tags=["proposals"])

    @router.get("/pools/{pool}/proposals", responses=answers(409))
    def list_proposals(
        pool: str,
        state: ProposalState | None = None,
        run_id: Annotated[str, Query(max_length=200)] = "",
        cursor: str = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Page[Proposal]:
        """List the proposals of a pool, oldest first."""
        return store.proposals(pool, state=state, run_id=run_id, cursor=cursor, limit=limit)

    @router.get("/proposals/{proposal_id}")
    def show_proposal(proposal_id: str) -> ProposalDetail:
        """Return a proposal: diagnosis, prompt, answer, checks, both measurements, verdict."""
        return store.proposal(proposal_id)

    def add_decision(decision: Decision) -> None:
        @router.post(
            f"/proposals/{{proposal_id}}/{decision}",
            name=f"{decision}_proposal",
            description=f"{decision.capitalize()} a proposal by hand; a repeated request changes nothing.",
            responses=answers(409),
        )
        def act(proposal_id: str, change: Change | None = None) -> ProposalDetail:
            changes.decide(proposal_id, decision, change or Change())
            return store.proposal(proposal_id)

    for decision in get_args(Decision):
        add_decision(decision)
    return router
