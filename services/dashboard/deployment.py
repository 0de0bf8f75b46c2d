"""What waits, who works, and which versions are live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from services.dashboard.apis import Apis
from triforge.types import ENDED, Page, RunState

_RUNS: Final = 50
_DEPTH, _OLDEST = "triforge_trainer_queue_depth", "triforge_trainer_queue_oldest_seconds"


class Deployments:
    """The page; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def show(self, key: str) -> str:
        """Queues, runs that have not ended, models and services."""
        from triforge.doctor.services import LONG_S  # noqa: PLC0415  it reads tokenizers

        runs, queues, findings, models = await asyncio.gather(
            self._apis.read(Page[RunState], "trainer", "/v1/runs", key, limit=_RUNS),
            self._queues(),
            self._apis.findings(key),
            self._apis.served(key),
        )
        return self._page(
            "deployment", runs=[run for run in runs.items if run.status not in ENDED], queues=queues, findings=findings,
            models=models, long_s=LONG_S,
        )  # fmt: skip

    async def _queues(self) -> dict[str, dict[str, float]]:
        """Jobs that wait and the seconds of the oldest, by queue, as the trainer shows them to Prometheus."""
        reply = await self._apis.fetch("trainer", "/metrics", "")
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(reply.text):
            if family.name in (_DEPTH, _OLDEST):
                for sample in family.samples:
                    found.setdefault(sample.labels["queue"], {})[family.name] = sample.value
        return {
            name: {"waiting": values.get(_DEPTH, 0.0), "oldest": values.get(_OLDEST, 0.0)}
            for name, values in found.items()
        }
