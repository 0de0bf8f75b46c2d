"""A database from before tenants keeps every row; what there was belongs to the tenant `default`."""

from __future__ import annotations

from pathlib import Path

import alembic.autogenerate
import pytest
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from triforge.errors import StorageError
from triforge.store.database import Database
from triforge.store.migrations.running import upgrade
from triforge.store.tables import Base, ProposalRow, RunRow, WeightsRow

OLD = (
    "INSERT INTO pools (id, name, family, options, request_digest, created_at, idempotency_key) "
    "VALUES ('pool-a', 'a', 'f', '{}', '', 0, 'k')",
    "INSERT INTO tasks (id, pool_id, slot, version, split, state, position, instruction, params, created_at) "
    "VALUES ('t', 'pool-a', 't', 0, 'train', 'active', 0, 'x', '{}', 0)",
    "INSERT INTO audit (at, by, action, subject, pool_id, reason, detail) "
    "VALUES (0, 'dana', 'pool.create', 'pool-a', 'pool-a', '', '{}')",
    "INSERT INTO runs (id, name, pool_id, status, step, policy_version, reward_version, config, state, reason, created_at, "
    "updated_at) VALUES ('r', '', 'pool-a', 'finished', 0, 0, 0, '{}', '{}', '', 0, 0)",
    "INSERT INTO steps (run_id, step, policy_version, reward_version, metrics, artifacts, at) "
    "VALUES ('r', 0, 0, 0, '{}', '{}', 0)",
)


@pytest.fixture
def old(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path}/old.sqlite")
    with database.engine.begin() as connection:
        upgrade(connection, "0004")
    with database.engine.begin() as connection:
        for statement in OLD:
            connection.execute(text(statement))
    return database


def rows(database: Database, query: str) -> list[tuple[object, ...]]:
    with database.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_every_row_stays_and_belongs_to_the_first_tenant(old: Database) -> None:
    old.upgrade()
    assert rows(old, "SELECT id, tenant FROM pools") == [("pool-a", "default")]
    assert rows(old, "SELECT id, tenant FROM runs") == [("r", "default")]
    assert rows(old, "SELECT subject, tenant, status FROM audit") == [("pool-a", "default", None)]
    assert rows(old, "SELECT count(*) FROM tasks") == rows(old, "SELECT count(*) FROM steps")
    assert rows(old, "PRAGMA foreign_keys") == [(1,)]
    assert rows(old, "PRAGMA foreign_key_check") == []
    with old.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, Base.metadata) == []
    old.close()


def test_tasks_still_need_their_pool_and_names_are_a_tenants_own(old: Database) -> None:
    old.upgrade()
    with pytest.raises(IntegrityError), old.engine.begin() as connection:
        connection.execute(text(OLD[1].replace("'t', 'pool-a', 't'", "'u', 'pool-b', 'u'")))
    again = OLD[0].replace("'pool-a'", "'pool-b'")
    with pytest.raises(IntegrityError), old.engine.begin() as connection:
        connection.execute(text(again))
    with old.engine.begin() as connection:
        connection.execute(text(again.replace("(id,", "(tenant, id,").replace("('pool-b'", "('blue', 'pool-b'")))  # fmt: skip
    old.close()


def test_a_damaged_database_is_left_as_it_is(old: Database) -> None:
    with old._unreferenced() as connection, connection.begin():
        connection.execute(text("DELETE FROM pools"))
    with pytest.raises(StorageError, match="tasks"):
        old.upgrade()
    assert rows(old, "SELECT version_num FROM alembic_version") == [("0004",)]
    old.close()


def test_runs_and_weights_of_0_1_are_found_under_the_models_names(old: Database) -> None:
    with old._unreferenced() as connection, connection.begin():
        upgrade(connection, "0005")
        for statement in (
            'UPDATE runs SET config = \'{"models": {"acts": {"path": "/m"}}}\', '
            'state = \'{"base": {"acts": 1, "judges": 2}}\'',
            "INSERT INTO weights (run_id, role, version, uri, digest, at) VALUES ('r', 'judges', 3, 'u', 'd', 0)",
            "UPDATE audit SET room = 'policy acts'",
        ):
            connection.execute(text(statement))
    old.upgrade()
    with old.read() as session:
        run = session.get_one(RunRow, "r")
        assert run.config == {"models": {"policy": {"path": "/m"}}}
        assert run.state == {"base": {"policy": 1, "reward": 2}}
        assert session.get_one(WeightsRow, ("r", "reward", 3)).uri == "u"
    assert rows(old, "SELECT service FROM audit") == [("policy policy",)]
    old.close()


def test_the_critic_of_tasks_becomes_the_diagnosis(old: Database) -> None:
    with old._unreferenced() as connection, connection.begin():
        upgrade(connection, "0006")
        for statement in (
            'UPDATE runs SET config = \'{"adaptation": {"critic_tokens": 7, "notes": 1}}\'',
            "INSERT INTO proposals (id, pool_id, slot, run_id, state, created_at, document) "
            "VALUES ('p', 'pool-a', 't', 'r', 'invalid', 0, '{\"critic\": \"why\", \"prompt\": \"\"}')",
        ):
            connection.execute(text(statement))
    old.upgrade()
    with old.read() as session:
        run = session.get_one(RunRow, "r")
        assert run.config == {"adaptation": {"diagnosis_tokens": 7, "notes": 1}}
        proposal = session.get_one(ProposalRow, "p")
        assert proposal.document == {"diagnosis": "why", "prompt": ""}
    old.close()


def test_the_lines_of_trajectories_come_and_no_row_goes(old: Database) -> None:
    old.upgrade()
    assert rows(old, "SELECT count(*) FROM trajectories") == [(0,)]
    assert rows(old, "SELECT run_id, step FROM steps") == [("r", 0)]
    old.close()


def test_the_ladder_of_a_run_becomes_that_of_all_its_tasks(old: Database) -> None:
    with old._unreferenced() as connection, connection.begin():
        upgrade(connection, "0010")
        for statement in (
            "INSERT INTO ladders (run_id, pool_id, high, counted, correct) VALUES ('r', 'pool-a', 3, 16, 9)",
            "INSERT INTO levels (task_id, level) VALUES ('t', 2)",
        ):
            connection.execute(text(statement))
    old.upgrade()
    columns = "run_id, kind, high, counted, correct"
    assert rows(old, f"SELECT {columns} FROM ladders") == [("r", "", 3, 16, 9)]
    assert rows(old, "SELECT task_id, level, kind FROM levels") == [("t", 2, "")]
    old.close()
