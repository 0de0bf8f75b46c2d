"""The controller `llm_rewrite`: a task outside the band is rewritten by a language model and measured against its parent.

With `null_control` 1 it is the null rewriter: every candidate is the unchanged parent, measured as any other and never
taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally

from services.env_adapter.adaptation.controller import wanted_direction
from services.env_adapter.adaptation.drafter import Drafter
from services.env_adapter.adaptation.ledger import Closed, Ledger, Opening
from triforge.types import Proposal, TaskOutcome


class LlmRewrite:
    """Proposes rewrites.

    Args:
        ledger: the store.
        drafter: makes proposals.
    """

    def __init__(self, ledger: Ledger, drafter: Drafter) -> None:
        self._ledger = ledger
        self._drafter = drafter
        self._drafting: Tally[str] = Tally()
        self._turn = asyncio.Lock()

    async def respond(self, outcome: TaskOutcome) -> Proposal | Closed:
        """A proposal, pending or invalid, if the task left the band and no cap forbids it."""
        direction = wanted_direction(outcome)
        if direction is None:
            return Closed("the task is inside the band")
        opening = await self._claim(outcome)
        if isinstance(opening, Closed):
            return opening
        try:
            drafted = await self._drafter.draft(outcome, direction, opening)
            return await asyncio.to_thread(
                self._ledger.propose, outcome, drafted.proposal, drafted.draft
            )
        finally:
            self._drafting[outcome.pool_id] -= 1

    async def _claim(self, outcome: TaskOutcome) -> Opening | Closed:
        """Look at the caps and take a place under them in one turn: outcomes that arrive together do not all draft."""
        async with self._turn:
            opening = await asyncio.to_thread(
                self._ledger.opening, outcome, drafting=self._drafting[outcome.pool_id]
            )
            if isinstance(opening, Opening):
                self._drafting[outcome.pool_id] += 1
            return opening
