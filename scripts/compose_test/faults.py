"""Faults of the stack while a run trains, and the time to recover."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from scripts.compose_test.record import Record
from scripts.compose_test.stack import Stack, patiently
from triforge.errors import UnavailableError
from triforge.types import ENDED

CUT_OFF_S, AWAY_S = 20.0, 10.0
_POLL_S = 0.5
_AHEAD = 6  # steps that a run must have left when a fault strikes: it must not end meanwhile


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done to one service.

    Attributes:
        service: whom it hits; empty for everybody.
        strike: does it; returns when the damage is over (a cut line is mended, a server is up again).
        restarts: whether the container is a new process afterwards.
    """

    what: str
    service: str
    strike: Callable[[Stack], None]
    restarts: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that the stack may take to get over a fault.

    Attributes:
        one_s: over one that hit one container.
        all_s: over the death of all of them.
    """

    one_s: float
    all_s: float

    @classmethod
    def of(cls, one_s: float, *, up_s: float) -> Limits:
        """Return what is killed at once starts at once: twice what the same stack took to come up in order, and no less than for one."""
        return cls(one_s, max(one_s, 2 * up_s))


@dataclass(slots=True)
class Outcome:
    """Result of a fault; seconds count from the moment it struck (for a cut line, from when it was mended)."""

    what: str
    service: str
    run: str
    at_step: int
    limit_s: float
    at: float = 0.0  # when it was over, in seconds since 1970
    well_s: float | None = None  # until the container was healthy again
    step_s: float | None = None  # until the run had committed a further step, or ended

    @property
    def recovered(self) -> bool:
        return self.well_s is not None and self.step_s is not None

    def document(self) -> dict[str, Any]:
        return asdict(self)


def faults(services: list[str]) -> list[Fault]:
    """Everything that is done, in order: each service killed, some cut off, the stores restarted, all at once."""
    stores = ("valkey", "postgres")
    kills = [_kill(name) for name in services if name not in stores]
    cuts = [
        _cut_off(name) for name in ("rollout-worker", "engine-policy", "learner-policy", "trainer")
    ]
    restarts = [Fault("docker compose restart", name, _restart(name)) for name in stores]
    away = [Fault(f"stopped for {AWAY_S:.0f} s", name, _stop(name)) for name in stores]
    return [*kills, *cuts, *restarts, *away, *(_kill(name) for name in stores), _kill_all(services)]


def _kill(service: str) -> Fault:
    return Fault("kill -9", service, lambda stack: stack.kill(service))


def _kill_all(services: list[str]) -> Fault:
    def strike(stack: Stack) -> None:
        for name in services:
            stack.kill(name)

    return Fault("kill -9 of every container", "", strike)


def _cut_off(service: str) -> Fault:
    def strike(stack: Stack) -> None:
        stack.cut_off(service)
        try:
            time.sleep(CUT_OFF_S)
        finally:
            stack.join(service)

    return Fault(f"off the network for {CUT_OFF_S:.0f} s", service, strike, restarts=False)


def _restart(service: str) -> Callable[[Stack], None]:
    return lambda stack: stack.restart(service)


def _stop(service: str) -> Callable[[Stack], None]:
    def strike(stack: Stack) -> None:
        stack.compose("stop", "-t", "10", service)
        try:
            time.sleep(AWAY_S)
        finally:
            stack.compose("start", service)

    return strike


class Course:
    """Runs that follow each other while faults strike; there is always one under way."""

    def __init__(
        self, stack: Stack, pool: str, config: dict[str, Any], *, seed: int, limits: Limits, record: Record
    ) -> None:  # fmt: skip
        self._stack, self._pool, self._config = stack, pool, config
        self._record, self._tell = record, record.tell
        self._random, self._limits = random.Random(seed), limits  # noqa: S311 (no secret)
        self._run = ""
        self.outcomes: list[Outcome] = []
        # with the moment and what it was before
        self._sick: list[tuple[Outcome, float, dict[str, str]]] = []

    def begin(self) -> str:
        """Submit a run; returns its id."""
        body = {"pool": self._pool, "name": "compose test", "config": self._config}
        key = uuid.uuid4().hex  # an answer that gets lost makes no second run
        made = patiently(
            lambda: self._stack.post("runs", "/v1/runs", body, key=key), within_s=self._limits.all_s
        )
        self._run = made["id"]
        self._tell(f"run {self._run} begins")
        return self._run

    def strike(self, fault: Fault) -> None:
        """Wait for a moment inside of a step, strike, and wait until a further step is committed.

        Whether the container is healthy again is looked for on the way; the next fault need not wait for that, unless it
        hits the same container, or all.
        """
        self._await_health(fault.service)
        self.under_way()
        time.sleep(self._random.uniform(0.0, 1.0))
        hit = self._stack.services() if not fault.service else [fault.service]
        began = {name: s["StartedAt"] for name, s in self._stack.states(hit).items()}
        before = began if fault.restarts else dict.fromkeys(hit, "")
        at_step = self._step()
        struck = time.monotonic()
        fault.strike(self._stack)
        if not fault.restarts:
            struck = time.monotonic()
        limit_s = self._limits.one_s if fault.service else self._limits.all_s
        outcome = Outcome(fault.what, fault.service, self._run, at_step, limit_s, time.time())
        self.outcomes.append(outcome)
        self._note(outcome)
        self._sick.append((outcome, struck, before))
        step_before = max(at_step, self._step())
        while time.monotonic() - struck < limit_s and outcome.step_s is None:
            if self._step() > step_before:
                outcome.step_s = round(time.monotonic() - struck, 1)
            self._look()
            time.sleep(_POLL_S)
        self._tell(f"{fault.what} {fault.service}: next step after {outcome.step_s} s")
        self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        self._record.fault(self.outcomes.index(outcome), outcome.document())

    def recover(self) -> None:
        """Wait until every container that was hit is healthy again, or its time is over."""
        self._await_health("")

    def _await_health(self, service: str) -> None:
        """Wait for the containers that the fault of a service would hit again; all of them without a name."""
        while any(service in (sick.service, "") or not sick.service for sick, _, _ in self._sick):
            self._look()
            time.sleep(_POLL_S)

    def _look(self) -> None:
        """Note who is healthy again; who takes too long is waited for no more."""
        for sick in list(self._sick):
            outcome, struck, before = sick
            seconds = round(time.monotonic() - struck, 1)
            if self._well(before):
                outcome.well_s = seconds
                self._tell(f"{outcome.what} {outcome.service}: healthy after {seconds} s")
                self._note(outcome)
            if outcome.well_s is not None or seconds > outcome.limit_s:
                self._sick.remove(sick)

    def end(self, *, within_s: float) -> dict[str, Any]:
        """Wait for the last run's end; returns it."""
        if not self._run:  # nothing was struck
            self.begin()
        deadline = time.monotonic() + within_s
        while True:
            run = self._ask()
            if run["status"] in ENDED or time.monotonic() > deadline:
                return run
            time.sleep(_POLL_S)

    def settled_facts(self, *, within_s: float) -> dict[str, Any]:
        """Return what lasts, once nothing is queued any more (the adaptation counts after a step) or the time is over."""
        deadline = time.monotonic() + within_s
        while True:
            facts = patiently(self._stack.facts, within_s=self._limits.all_s)
            busy = facts["jobs"] + sum(run["outcomes"] for run in facts["runs"])
            busy += sum(taken["state"] in ("held", "put off") for taken in facts["unacknowledged"])
            if not busy or time.monotonic() > deadline:
                return facts
            time.sleep(_POLL_S)

    def under_way(self) -> None:
        """Wait until the run is at a step of its own and not near its end; a new one if the last has ended."""
        while True:
            run = self._ask() if self._run else None
            if run is None or run["status"] in ENDED:
                self.begin()
            elif run["status"] == "running" and 1 <= run["step"] <= run["steps"] - _AHEAD:
                return
            self._look()
            time.sleep(_POLL_S)

    def _ask(self) -> dict[str, Any]:
        found: dict[str, Any] = patiently(lambda: self._stack.get("runs", f"/v1/runs/{self._run}"), within_s=self._limits.all_s)  # fmt: skip
        return found

    def _step(self) -> int:
        """Return the run's step; one more than it can have where it has ended, and -1 while the API is away."""
        try:
            run = self._stack.get("runs", f"/v1/runs/{self._run}")
        except UnavailableError:
            return -1
        return int(run["steps"]) + 1 if run["status"] in ENDED else int(run["step"])

    def _well(self, before: dict[str, str]) -> bool:
        try:
            return self._stack.are_well(before)
        except UnavailableError:
            return False
