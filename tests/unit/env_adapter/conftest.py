"""A family small enough to check by eye, and a database for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from services.env_adapter.adaptation.measurement import Closed, MeasurementStore, proposal_id
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.store import PoolStore
from tests.sections import adapt_settings, plain_proposal
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, EnvironmentFamily, RewriteMenu, TaskDraft
from triforge.store.database import Database, open_database
from triforge.testing import FakeFamily
from triforge.types import (
    CheckResult,
    Direction,
    Params,
    PoolRequest,
    Proposal,
    Task,
)

COLOURS = ("red", "green", "blue")


class ShelfFamily:
    """Tasks {"shelf": 1..9, "colour": red|green|blue}: put a ball of that colour on that shelf. Shelf 9 is broken."""

    name = "shelf"

    def validate(self, params: Params) -> TaskDraft:
        unknown = sorted(set(params) - {"shelf", "colour"})
        if unknown:
            raise InputError(f"shelf params: unknown field {unknown[0]!r}")
        shelf, colour = params.get("shelf"), params.get("colour", "red")
        if not isinstance(shelf, int) or not 1 <= shelf <= 9:
            raise InputError(f"shelf params: shelf: given {shelf!r}, expected 1 to 9")
        if colour not in COLOURS:
            raise InputError(f"shelf params: colour: given {colour!r}, allowed {COLOURS}")
        return TaskDraft(
            params={"shelf": shelf, "colour": colour},
            instruction=f"Put a {colour} ball on shelf {shelf}.",
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        if set(options) - {"shelves"}:
            raise InputError(f"shelf options: unknown option {sorted(options)[0]!r}")
        shelves = int(str(options.get("shelves", 8)))
        return [
            {
                "shelf": 1 + (seed + index) % shelves,
                "colour": COLOURS[(seed + index) // shelves % 3],
            }
            for index in range(count)
        ]

    def make(self, options: Params) -> Environment:
        return FakeFamily().make({})  # never played: a pool only asks whether its options are good

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        return ["put"]

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        shelves, colours = tuple("123456789"), COLOURS
        return RewriteMenu(
            description=f"The ball goes on shelf {task.params['shelf']}.",
            fields={"shelf": shelves, "colour": colours},
            combinations=tuple({"shelf": s, "colour": c} for s in shelves for c in colours),
        )

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        return self.validate({"shelf": int(answer["shelf"]), "colour": answer["colour"]})

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        return [
            CheckResult(name="differs", passed=candidate.params != parent.params),
            CheckResult(
                name="solvable", passed=candidate.params["shelf"] != 9, detail="shelf 9 is broken"
            ),
            CheckResult(name="not_satisfied_at_reset", passed=True),
            CheckResult(
                name="instruction_agrees",
                passed=f"shelf {candidate.params['shelf']}." in candidate.instruction,
            ),
        ]


@pytest.fixture
def shelf_family() -> ShelfFamily:
    return ShelfFamily()


@pytest.fixture
def database(tmp_path: Path, empty_store: Path) -> Iterator[Database]:
    """SQLite, or the PostgreSQL server of TEST_DATABASE_URL, whose schema `public` is emptied before every test."""
    url = os.environ.get("TEST_DATABASE_URL")
    if url:
        emptied = Database(url)
        with emptied.engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        emptied.close()
    opened = open_database(url or f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    yield opened
    opened.close()


class Service:
    """A pool of two training slots and one held-out one, with its measurements."""

    hard = TaskDraft(
        params={"shelf": 5, "colour": "blue"}, instruction="Put a blue ball on shelf 5."
    )

    def __init__(self, database: Database, family: EnvironmentFamily) -> None:
        rows: list[tuple[str, Any]] = [
            ("a", {"params": {"shelf": 1}}),
            ("b", {"params": {"shelf": 2}}),
            ("c", {"params": {"shelf": 3}, "split": "heldout"}),
        ]
        maker = PoolMaker(database, lambda _: family)
        self.pool = maker.create(PoolRequest(name="p", environment="shelf"), rows)[0]
        self.database = database
        self.measurements = MeasurementStore(database)
        self.store = PoolStore(database)
        self.held, self.first, self.second = (t.id for t in self.store.tasks("p").items)

    def outcome(self, task_id: str, successes: int, group: str = "g", **more: Any) -> RunOutcome:
        fields: dict[str, Any] = {
            "step": 0, "purpose": "train", "measured": 8, "policy_version": 1, **more
        }  # fmt: skip
        return RunOutcome(
            group_id=group,
            run_id="r",
            pool_id=self.pool.id,
            task_id=task_id,
            successes=successes,
            rollouts=8,
            **fields,
        )

    def propose(
        self, task_id: str, group: str = "g", draft: TaskDraft | None = hard, **more: Any
    ) -> Proposal | Closed:
        settings = more.pop("settings", adapt_settings(max_pending=9))
        outcome = self.outcome(task_id, 8, group, settings=settings)
        self.measurements.record(outcome)
        parent = self.store.task(task_id)
        proposal = plain_proposal(
            proposal_id(group),
            pool_id=self.pool.id,
            slot=parent.slot,
            parent_id=task_id,
            state="invalid",
            instruction_before=parent.instruction,
            **more,
        )
        return self.measurements.propose(outcome, proposal, draft)

    def pending(self, task_id: str, group: str = "g", **more: Any) -> Proposal:
        made = self.propose(task_id, group, **more)
        assert isinstance(made, Proposal)
        assert made.candidate_id
        return made

    def measure(
        self,
        proposal: Proposal,
        step: int,
        parent: int,
        candidate: int,
        settings: AdaptSettings | None = None,
        **more: Any,
    ) -> Proposal | None:
        """Count a pair of groups; returns what the second one led to."""
        found = None
        for outcome in self.pair(proposal, step, parent, candidate, settings, **more):
            found = self.measurements.record(outcome)
        return found

    def pair(
        self,
        proposal: Proposal,
        step: int,
        parent: int,
        candidate: int,
        settings: AdaptSettings | None = None,
        **more: Any,
    ) -> list[RunOutcome]:
        """The outcomes of the two groups that measure a proposal at a step."""
        return [
            self.outcome(
                str(task_id),
                successes,
                f"{purpose}-{step}",
                step=step,
                purpose=purpose,
                proposal_id=proposal.id,
                settings=settings or adapt_settings(),
                **more,
            )
            for purpose, task_id, successes in (
                ("measure_parent", proposal.parent_id, parent),
                ("measure_candidate", proposal.candidate_id, candidate),
            )
        ]

    def states(self) -> dict[str, str]:
        """Version -> state of the first slot."""
        versions = self.store.lineage(self.first).versions
        return {f"v{version.task.version}": version.task.state for version in versions}

    def stored(self, proposal: Proposal) -> Proposal:
        (found,) = [p for p in self.store.proposals("p").items if p.id == proposal.id]
        return found


@contextmanager
def crash_at(database: Database, *beginnings: str, number: int = 1) -> Iterator[None]:
    """Let the process die at the statement with that number among those that begin so."""
    seen = 0

    def die(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal seen
        if statement.startswith(beginnings):
            seen += 1
            if seen == number:
                raise KeyboardInterrupt

    event.listen(database.engine, "before_cursor_execute", die)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        event.remove(database.engine, "before_cursor_execute", die)


@pytest.fixture
def service(database: Database, shelf_family: EnvironmentFamily) -> Service:
    return Service(database, shelf_family)
