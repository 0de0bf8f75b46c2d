"""The credit of groups that another trainer plays: stored for it as soon as they land, before their step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from services.trainer.credit.judged_groups import played_by
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.reports import credit_report
from services.trainer.loop.parts import Parts
from triforge.config import RunConfig
from triforge.retry import retry, waiting
from triforge.types import JudgedGroup, RunState

_PATIENCE_S = 300.0


def arrival(
    parts: Parts, run: RunState, config: RunConfig, options: Callable[[], SampleOptions]
) -> Callable[[JudgedGroup, int, int], Awaitable[None]]:
    """Return what is called with each group that lands, how many have, and of how many: with `options` a trainer's gets its credit."""
    if config.env_adapter.by_trainer:
        return CreditReports(parts, run, config, options).arrived
    return partial(parts.emit_group, run.id)


class CreditReports:
    """The reports of one run; `options` are those of its next step."""

    def __init__(
        self, parts: Parts, run: RunState, config: RunConfig, options: Callable[[], SampleOptions]
    ) -> None:
        self._parts, self._run_id, self._options = parts, run.id, options
        self._bound, self._newest = config.run.staleness_bound, 0

    async def arrived(self, group: JudgedGroup, done: int, total: int) -> None:
        """Announce a group, and store its credit, once; see `InFlight`."""
        await self._parts.emit_group(self._run_id, group, done, total)
        self._newest = max(self._newest, *played_by(group), 0)
        report = credit_report(group, self._options(), oldest=self._newest - self._bound)
        await retry(lambda: self._parts.broker.put_payload(report), waiting(_PATIENCE_S))
