"""What waits, who works, and which versions are live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from services.dashboard.apis import Apis
from triforge.errors import TriforgeError
from triforge.types import ENDED, Page, RunState, WeightsState

_RUNS: Final = 50
_MODELS: Final = ("policy_model", "reward_model", "rewriter_model")
_LONG_S: Final = 300.0  # as `triforge doctor` has it
_DEPTH, _OLDEST = "triforge_trainer_queue_depth", "triforge_trainer_queue_oldest_seconds"


class Deployments:
    """The page; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def show(self, key: str) -> str:
        """Queues, runs that have not ended, models and services."""
        names = [name for name in _MODELS if name in self._apis.addresses]
        runs, queues, findings, models = await asyncio.gather(
            self._apis.read(Page[RunState], "trainer", "/v1/runs", key, limit=_RUNS),
            self._queues(),
            self._apis.findings(key),
            asyncio.gather(*(self._serves(name, key) for name in names)),
        )
        return self._page(
            "deployment", runs=[run for run in runs.items if run.status not in ENDED], queues=queues, findings=findings,
            models=[*zip(names, models, strict=True)], long_s=_LONG_S,
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

    async def _serves(self, name: str, key: str) -> WeightsState | str:
        """What a model's service serves, or why it does not say."""
        try:
            return await self._apis.read(WeightsState, name, "/v1/weights", key)
        except TriforgeError as error:
            return error.detail
