"""The database: schema, locking, transactions and errors."""

import sqlite3
import threading
from pathlib import Path

import alembic.autogenerate
import pytest
from alembic.migration import MigrationContext
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from triforge.errors import ConfigError, StorageError, TriforgeError, UnavailableError
from triforge.store.database import REVISIONS, Database, open_database, our_error
from triforge.store.tables import Base, NoteRow, PoolRow, TenantRow


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/deep/er/store.sqlite"


def a_pool(name: str) -> PoolRow:
    return PoolRow(
        id=f"pool-{name}", name=name, family="counting", options={}, idempotency_key=None,
        request_digest="", created_at=0.0,
    )  # fmt: skip


def test_a_new_database_has_the_tables_and_the_newest_revision(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    assert database.schema() == (REVISIONS[-1], REVISIONS[-1])
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, Base.metadata) == []
    database.close()


def test_upgrade_of_a_0_1_database(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.engine.begin() as connection:
        for statement in (
            "ALTER TABLE tenants ADD COLUMN max_pools INTEGER",
            "CREATE TABLE audit (id INTEGER PRIMARY KEY, action VARCHAR(120))",
            "DROP TABLE controller_notes",
            "DROP TABLE labels",
            "CREATE TABLE ladders (run_id, kind, pool_id, high, counted, correct)",
            "CREATE TABLE levels (task_id, level, kind)",
            "INSERT INTO ladders VALUES ('r', 'maze', 'p', 3, 16, 12)",
            "INSERT INTO levels VALUES ('t', 2, 'maze')",
            "UPDATE alembic_version SET version_num = '0012'",
        ):
            connection.execute(text(statement))
    database.upgrade()
    with database.write() as session:
        session.add(TenantRow(name="blue", created_at=0.0))
        notes = {(n.method, n.subject, n.key): n.value for n in session.scalars(select(NoteRow))}
    assert notes == {
        ("rlve", "r", "maze"): {"high": 3, "counted": 16, "correct": 12},
        ("rlve", "t", ""): {"kind": "maze", "level": 2},
    }
    database.close()


@pytest.mark.parametrize(
    ("revision", "message"), [("0004", r"0004.*triforge 0\.1"), ("9999", "9999")]
)
def test_older_and_newer_schemas(tmp_path: Path, revision: str, message: str) -> None:
    database = open_database(url_of(tmp_path))
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    with pytest.raises(StorageError, match=message):
        database.upgrade()
    database.close()


def test_sqlite_runs_in_wal_mode_with_foreign_keys_and_a_busy_timeout(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.read() as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        }
    database.close()
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30_000}


def test_many_processes_that_start_at_once_migrate_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def start() -> None:
        try:
            open_database(url_of(tmp_path)).close()
        except Exception as error:  # noqa: BLE001 (whatever it is, the test shows it)
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def add_half(database: Database) -> None:
    with database.write() as session:
        session.add(a_pool("half"))
        session.flush()
        raise RuntimeError


def test_what_fails_in_the_middle_of_a_transaction_leaves_nothing(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with pytest.raises(RuntimeError):
        add_half(database)
    with database.read() as session:
        assert session.get(PoolRow, "pool-half") is None
    database.close()


def test_two_transactions_that_read_before_they_write_take_turns(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.write() as session:
        session.add(a_pool("counter"))

    def add_one() -> None:
        with database.write() as session:
            row = session.get_one(PoolRow, "pool-counter")
            row.created_at += 1

    threads = [threading.Thread(target=add_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert session.get_one(PoolRow, "pool-counter").created_at == 8
    database.close()


@pytest.mark.parametrize("url", ["not a url", "oracle9://x/y"])
def test_a_url_that_is_not_understood_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="database_url"):
        Database(url)


def test_a_file_that_is_no_database_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        open_database(f"sqlite:///{tmp_path}/store.sqlite")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        open_database(f"sqlite:///{tmp_path}/file/store.sqlite")


def test_a_database_that_is_locked_for_too_long_is_unavailable(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    other = sqlite3.connect(str(database.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with database.read() as session:  # readers are not blocked by a writer
        session.execute(text("PRAGMA busy_timeout=1"))
        assert session.get(PoolRow, "none") is None
    with pytest.raises(UnavailableError, match="locked"), database.write() as session:
        session.get(PoolRow, "none")
    other.close()
    database.close()


def test_tables_that_are_not_there_are_a_schema_that_is_not_up_to_date(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/empty.sqlite")
    with pytest.raises(UnavailableError, match="another schema"), database.read() as session:
        session.get(PoolRow, "none")
    database.close()


MESSAGES: dict[str, tuple[type[DBAPIError], str, type[TriforgeError], str]] = {
    "no right": (ProgrammingError, "permission denied for schema public\nLINE 2: CREATE", StorageError, "rights of its user"),
    "a standby": (InternalError, "cannot execute INSERT in a read-only transaction", StorageError, "rights of its user"),
    "old schema": (ProgrammingError, 'relation "api_keys" does not exist\nLINE 2: FROM', UnavailableError, "another schema"),
    "older still": (ProgrammingError, "column runs.tenant does not exist", UnavailableError, "another schema"),
    "no database": (OperationalError, 'FATAL:  database "x" does not exist', UnavailableError, "TRIFORGE_DATABASE_URL"),
    "no server": (OperationalError, "Connection refused\n\tIs it there?", UnavailableError, "is it running"),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_errors_of_postgresql_become_ours_with_the_way_to_mend_them(what: str) -> None:
    kind, message, expected, mend = MESSAGES[what]
    error = our_error(kind("SELECT 1", {}, Exception(message)), message)
    assert type(error) is expected
    assert mend in error.detail
    assert "\n" not in error.detail
    assert "LINE 2" not in error.detail
