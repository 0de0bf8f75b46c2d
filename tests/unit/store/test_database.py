"""The database: schema, locking, transactions, and what its failures become."""

import sqlite3
import threading
from pathlib import Path

import alembic.autogenerate
import pytest
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from triforge.errors import ConfigError, StorageError, TriforgeError, UnavailableError
from triforge.store.database import REVISIONS, Database, meaning_of, open_database
from triforge.store.migrations.running import alembic_config
from triforge.store.tables import Base, PoolRow


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/deep/er/store.sqlite"


def a_pool(name: str) -> PoolRow:
    return PoolRow(
        id=f"pool-{name}",
        name=name,
        family="counting",
        options={},
        idempotency_key=None,
        request_digest="",
        created_at=0.0,
    )


def test_migrations_lead_to_exactly_the_tables_of_tables_py(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, Base.metadata) == []
    database.close()


def test_the_revisions_that_are_read_off_the_folder_are_those_that_alembic_walks() -> None:
    walked = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    assert [script.revision for script in walked][::-1] == REVISIONS


def test_a_missing_column_would_be_noticed(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE measurements DROP COLUMN rollouts"))
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert len(alembic.autogenerate.compare_metadata(context, Base.metadata)) == 1
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


def test_a_schema_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    database = open_database(url_of(tmp_path))
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="9999"):
        database.upgrade()
    database.close()


@pytest.mark.parametrize("url", ["not a url", "oracle9://x/y"])
def test_a_url_that_is_not_understood_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="database_url"):
        Database(url)


def test_a_file_that_is_no_database_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        open_database(f"sqlite:///{tmp_path}/store.sqlite")


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
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


SAID: dict[str, tuple[type[DBAPIError], str, type[TriforgeError], str]] = {
    "no right": (ProgrammingError, "permission denied for schema public\nLINE 2: CREATE", StorageError, "rights of its user"),
    "a standby": (InternalError, "cannot execute INSERT in a read-only transaction", StorageError, "rights of its user"),
    "old schema": (ProgrammingError, 'relation "api_keys" does not exist\nLINE 2: FROM', UnavailableError, "another schema"),
    "older still": (ProgrammingError, "column runs.tenant does not exist", UnavailableError, "another schema"),
    "no database": (OperationalError, 'FATAL:  database "x" does not exist', UnavailableError, "TRIFORGE_DATABASE_URL"),
    "nobody there": (OperationalError, "Connection refused\n\tIs it there?", UnavailableError, "is it running"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAID)
def test_what_postgresql_says_becomes_a_sentence_that_names_the_mend(what: str) -> None:
    kind, said, becomes, mend = SAID[what]
    meant = meaning_of(kind("SELECT 1", {}, Exception(said)), said)
    assert type(meant) is becomes
    assert mend in meant.detail
    assert "\n" not in meant.detail
    assert "LINE 2" not in meant.detail
