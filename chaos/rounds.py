"""One run that is hurt: submitted, waited for, looked at."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chaos.broker import Broker
from chaos.evidence import Evidence, Store, gather
from chaos.invariants import ALWAYS, dropped, emptied, payloads, shape
from chaos.stack import Stack
from chaos.waiting import until
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings
from triforge.types import ENDED

_COUNTED_WITHIN_S = 60.0  # adaptation counts after the run has ended, too
_STEP_S = 4.0  # what a step takes here, until one was measured
_TASKS = 12


class Untried(Exception):  # noqa: N818 (no failure: what a scenario needs is not to be had on this machine)
    """Nothing was hurt; the text says why."""


class Place(Protocol):
    """A deployment, as far as a run needs to know it."""

    settings: Settings

    @property
    def artifacts(self) -> Path:
        """Where it keeps them."""


@dataclass
class Round:
    """One run of a scenario, and what was seen of it.

    Attributes:
        limit_s: a worker's jobs must be worked on again within that.
        step_s: seconds that a step takes when nothing happens.
        moments: what happened when, for people.
        recoveries: seconds until what had died was replaced.
        missed: blows that hit nothing, and are no proof of anything.
        place: where the run is, if not on the stack.
    """

    stack: Stack
    broker: Broker
    store: Store
    rng: random.Random
    number: int
    limit_s: float
    step_s: float = _STEP_S
    run_id: str = ""
    moments: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    evidence: Evidence | None = None
    place: Place | None = None

    @property
    def at(self) -> Place:
        return self.place or self.stack

    async def submit(self, **sections: dict[str, Any]) -> None:
        """Submit a run on a new pool; `sections` lie over the deployment's document."""
        settings = self.at.settings
        async with (
            EnvAdapterClient(settings.env_adapter_url) as pools,
            TrainerClient(settings.trainer_url) as trainer,
        ):
            pool = await pools.create_pool(
                {
                    "name": f"chaos-{self.number}",
                    "environment": "household",
                    "options": {"wording": "terse"},
                    "generate": {"count": _TASKS, "heldout": 4, "seed": self.number + 1},
                }
            )
            run = await trainer.submit(pool.id, name=f"chaos-{self.number}", config=dict(sections))
        self.run_id = run.id

    async def resume(self) -> None:
        """Take a run that has failed up again, as an operator would."""
        async with TrainerClient(self.at.settings.trainer_url) as trainer:
            await trainer.resume(self.run_id)

    def row(self) -> dict[str, Any]:
        """Return the run's row; the last one that could be read while the database is held."""
        try:
            self._row = self.store.run(self.run_id)
        except sqlite3.OperationalError:
            if not hasattr(self, "_row"):
                raise
        return self._row

    async def until(self, *, step: int = 10_000, within_s: float = 180.0) -> str:
        """Return the run's status once it has finished that step, or ended, or the time is over."""

        def reached() -> bool:
            row = self.row()
            return row["status"] in ENDED or row["step"] >= step

        await until(reached, within_s=within_s)
        return str(self.row()["status"])

    async def moment(self, *, step: int | None = None) -> None:
        """Wait for a random moment of the run: somewhere in a step, by default in any but the last one."""
        last = int(self.row()["config"]["run"]["steps"])
        after = self.rng.randrange(max(1, last - 1)) if step is None else step
        part = self.rng.random()
        await self.until(step=after)
        await asyncio.sleep(part * self.step_s)
        self.moments.append(f"{part:.2f} into step {after + 1}")
        if self.row()["status"] in ENDED:
            self.missed.append(f"the run was over {part:.2f} into step {after + 1}")

    def demand(self, holds: bool, otherwise: str) -> None:
        """Put a broken promise on record."""
        if not holds:
            self.wrong.append(otherwise)

    def recovered(self, seconds: dict[str, float]) -> None:
        """Put times of recovery on record, and those that are too long as broken promises."""
        self.recoveries += [s for s in seconds.values() if s != float("inf")]
        for name, took in seconds.items():
            self.demand(took <= self.limit_s, f"{name} was taken up again after {took:.1f} s, promised {self.limit_s:.0f}")  # fmt: skip

    async def end(self, *, within_s: float = 240.0, undisturbed: bool = False) -> None:
        """Wait for the run's end and look at what is on record."""
        await self.until(within_s=within_s)
        await self._counted()
        self.evidence = await asyncio.to_thread(
            gather, self.store, self.at.artifacts, self.broker, self.run_id
        )
        self.check(undisturbed=undisturbed)

    def check(self, *, undisturbed: bool = False) -> None:
        assert self.evidence is not None
        checks = dict(ALWAYS) | ({"emptied": emptied} if undisturbed else {})
        for name, check in checks.items():
            self.wrong += [f"{name}: {sentence}" for sentence in check(self.evidence)]

    async def _counted(self) -> None:
        """Adaptation goes on behind the run; give it its time, not more."""
        groups = sum(len(p["groups"]) for p in self.store.rows(
            "SELECT groups FROM plans WHERE run_id = ? AND kind = 'train'", [self.run_id]
        ))  # fmt: skip
        await until(
            lambda: (
                self.store.counted(self.run_id) >= groups and not self.broker.outcomes(self.run_id)
            ),
            within_s=_COUNTED_WITHIN_S,
        )

    def summary(self) -> dict[str, Any]:
        found = self.evidence
        return {
            "run": self.run_id,
            "moments": self.moments,
            "recovery_s": [round(s, 2) for s in self.recoveries],
            "wrong": self.wrong,
            "missed": self.missed,
            "dropped": dropped(found) if found else {},
            "shape": shape(found) if found and found.steps else {},
            "payloads left to expire": len(payloads(found)) if found else 0,
            "resent": sum(s["metrics"].get("resent", 0) for s in found.steps) if found else 0,
        }
