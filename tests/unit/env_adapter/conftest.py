"""A family small enough to check by eye, and a database for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from triforge.errors import InputError
from triforge.messages import CheckResult, Direction, Params, Task
from triforge.rollout.protocols import Environment, RewriteMenu, TaskDraft
from triforge.store.database import Database, open_database

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
        raise InputError("shelf: nothing is played in these tests")

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
        ]


@pytest.fixture
def shelf_family() -> ShelfFamily:
    return ShelfFamily()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """SQLite, or the PostgreSQL server of TEST_DATABASE_URL, whose schema `public` is emptied before every test."""
    url = os.environ.get("TEST_DATABASE_URL")
    if url:
        emptied = Database(url)
        with emptied.engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        emptied.close()
    opened = open_database(url or f"sqlite:///{tmp_path}/store.sqlite")
    yield opened
    opened.close()
