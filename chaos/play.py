"""Playing scenarios one after another on one deployment, each from a calm start, all within a budget."""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos.broker import Broker
from chaos.catalogue import Scenario
from chaos.evidence import Store
from chaos.rounds import Round, Untried
from chaos.stack import Stack
from chaos.waiting import until, until_serves
from triforge.clients.trainer import TrainerClient
from triforge.errors import TriforgeError
from triforge.types import ENDED

_ROUND_S = 420.0  # no round may take longer
_CALM_S = 90.0
_SHOWN = 10  # broken invariants of a round that are printed at once


@dataclass
class Result:
    """Result of one round.

    Attributes:
        played: whether its time had come before all time was over.
        spare: a second round of the scenario at other moments, if there is time.
        untried: why it cannot be played on this machine.
    """

    scenario: str
    number: int
    seed: int
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    played: bool = True
    spare: bool = False
    untried: str = ""

    @property
    def verdict(self) -> str:
        if not self.played:
            return "left out" if self.spare else "not played"
        if self.untried:
            return "not tried"
        return "broken" if self.wrong else "held"


class Player:
    """Plays rounds.

    Args:
        minutes: after these nothing new is begun.
        limit_s: a worker's jobs must be worked on again within that.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        tell: Callable[[str], None],
        minutes: float = 27.0,
        limit_s: float = 20.0,
    ) -> None:
        self._folder, self._seed, self._tell = folder, seed, tell
        self._limit_s = limit_s
        self._minutes = minutes
        self._over = time.monotonic() + 60 * minutes
        self.results: list[Result] = []
        self._stack = Stack(folder, tell)
        self._step_s = 0.0
        self._played = 0

    async def play(self, scenarios: list[Scenario], *, rounds: int | None = None) -> list[Result]:
        """All rounds: the first of each scenario, then the second of each, and so on."""
        try:
            await self._stack.start()
            for number in range(max(rounds or s.rounds for s in scenarios)):
                for scenario in scenarios:
                    if number < (rounds or scenario.rounds):
                        spare = number > 0 and rounds is None
                        self.results.append(await self._round(scenario, number, spare=spare))
        finally:
            await self._stack.stop()
        return self.results

    async def _round(self, scenario: Scenario, number: int, *, spare: bool) -> Result:
        seed = random.Random(f"{self._seed}/{scenario.name}/{number}").randrange(1 << 30)  # noqa: S311 (no secret)
        result = Result(scenario.name, number, seed, spare=spare)
        if time.monotonic() > self._over:
            result.played, result.wrong = False, [f"the {self._minutes:g} minutes were over before"]
            return result
        self._played += 1
        broker = Broker(self._stack.settings.redis_url)
        made = Round(
            stack=self._stack, broker=broker, store=Store(self._stack.state / "triforge.sqlite"),
            rng=random.Random(seed), number=self._played, limit_s=self._limit_s,  # noqa: S311 (no secret)
        )  # fmt: skip
        made.step_s = self._step_s or made.step_s
        begun = time.monotonic()
        try:
            async with asyncio.timeout(_ROUND_S):
                await scenario.play(made)
        except Untried as error:
            result.untried = str(error)
        except TimeoutError:
            made.wrong.append(f"the round was not over after {_ROUND_S:.0f} s")
        except Exception as error:  # noqa: BLE001 (the border: one broken round must not end the others)
            made.wrong.append(
                f"the round itself failed: {error!r}: {traceback.format_exc(limit=-3)}"
            )
        result.seconds = time.monotonic() - begun
        result.found, result.wrong = made.summary(), made.wrong
        if scenario.name == "undisturbed" and made.evidence and len(made.evidence.steps) > 1:
            ends = [step["at"] for step in made.evidence.steps]
            self._step_s = statistics.median(b - a for a, b in pairwise(ends))
        self._say(result)
        await self._calm(made)
        broker.close()
        return result

    def _say(self, result: Result) -> None:
        slowest = max(result.found.get("recovery_s") or [0.0])
        self._tell(
            f"{result.scenario} {result.number + 1} (seed {result.seed}): {result.verdict} after {result.seconds:.0f} s; "
            f"{result.untried or '; '.join(result.found['moments']) or 'no moment to tell of'}"
            f"{f'; slowest recovery {slowest:.1f} s' if slowest else ''}"
        )
        for sentence in result.found["missed"]:
            self._tell(f"    hit nothing: {sentence}")
        for sentence in result.wrong[:_SHOWN]:
            self._tell(f"    {sentence}")
        if len(result.wrong) > _SHOWN:
            self._tell(f"    and {len(result.wrong) - _SHOWN} more; all are in chaos.json")

    async def _calm(self, made: Round) -> None:
        """Take everything back, end the run, wait until all services serve; start afresh if that does not help."""
        stack = self._stack
        for role, delay in (("policy", 0.2), ("reward", 0.2), ("rewriter", 0.5)):
            stack.proxies[role].heal()
            stack.proxies[role].delay_s = delay
        for name in stack.names():
            stack.thaw(name)
        for disk in (stack.disk, stack.state_disk):
            disk.free()
        if made.run_id and made.place is None:
            await asyncio.to_thread(_prune, stack.disk.folder, made.run_id)
        try:
            async with asyncio.timeout(_CALM_S):
                await self._until_calm(made)
        except (TimeoutError, TriforgeError) as error:
            self._tell(f"the deployment does not calm down ({error}); starting it afresh")
            await stack.stop()
            self._stack = Stack(self._folder, self._tell)
            await self._stack.start()

    async def _until_calm(self, made: Round) -> None:
        stack = self._stack
        await until(
            lambda: all(stack.process(name).pid for name in stack.names()), within_s=_CALM_S
        )
        for name in stack.names():
            url = stack.process(name).spec.ready_url
            if url:
                await until_serves(url, within_s=_CALM_S)
        if made.run_id and made.place is None and made.row()["status"] not in ENDED:
            async with TrainerClient(stack.settings.trainer_url) as trainer:
                await trainer.stop(made.run_id)
            await until(lambda: made.row()["status"] in ENDED, within_s=_CALM_S)


def _prune(artifacts: Path, newest: str) -> None:
    """Delete what older runs have left; what the services serve belongs to the newest."""
    for kind in ("weights", "checkpoints", "runs"):
        for folder in (artifacts / kind).glob("run-*"):
            if folder.name != newest:
                shutil.rmtree(folder, ignore_errors=True)
