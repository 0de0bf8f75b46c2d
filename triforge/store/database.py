"""The database behind every service: one place that knows SQLite's locking, PostgreSQL's driver and the schema's version.

`Database` opens an engine and brings the schema to head. Sessions are synchronous; services call them in threads.
Failures leave as the errors of `triforge.errors`: a database that does not answer is `UnavailableError`, a full disk is
`StorageError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from triforge.errors import (
    ConfigError,
    InputError,
    StorageError,
    TriforgeError,
    UnavailableError,
    install_command,
)

_BUSY_TIMEOUT_S = 30  # a writer waits so long for another writer before it gives up
_CONNECT_TIMEOUT_S = 5
_POSTGRES_LOCK = 0x7_21F0_26E  # any constant of our own; names the lock that migrations hold
# The revisions, oldest first: each is the number that its script's name begins with. Asked of the folder and not of Alembic,
# which every process would load at its start to learn that there is nothing to do.
REVISIONS = sorted(
    path.name.partition("_")[0]
    for path in Path(__file__).with_name("migrations").glob("versions/[0-9]*.py")
)


class Database:
    """One database of a deployment, by an SQLAlchemy URL; ConfigError if that is not understood or lacks its driver."""

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.engine = _sqlite(self.url) if self.is_sqlite else _server(self.url)
        event.listen(self.engine, "handle_error", _translate)
        # Readers of SQLite need no write lock; everything else begins with it (see _begin).
        reading = self.engine.execution_options(sqlite_begin="BEGIN")
        self._read = sessionmaker(reading, expire_on_commit=False)
        self._write = sessionmaker(self.engine, expire_on_commit=False)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite, where one writer at a time holds the whole file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None of a server's database, and of one in memory."""
        kept = self.is_sqlite and not _in_memory(self.url)
        return Path(str(self.url.database)) if kept else None

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with self._read() as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """One transaction: committed whole at the end of the block, rolled back whole when it raises."""
        with self._write.begin() as session:
            yield session

    def ping(self) -> None:
        """Raises UnavailableError when the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def schema(self) -> tuple[str | None, str]:
        """The schema of the database, None if it is empty, and the one that this version writes. Changes nothing."""
        file = self.file
        if file is not None and not file.exists():
            return None, REVISIONS[-1]
        with self.engine.connect() as connection:
            return _revision(connection), REVISIONS[-1]

    def upgrade(self) -> None:
        """Bring the schema to head. Safe when several processes start at once: one migrates, the others wait."""
        with self._migration_lock():
            if self.is_sqlite:
                # The file remembers the mode. Switching fails at once while anyone else reads, so it happens under the lock.
                with self.engine.execution_options(sqlite_begin="").connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            with self._unreferenced() as connection, connection.begin():
                if _revision(connection) != REVISIONS[-1]:
                    from triforge.store.migrations.running import upgrade  # noqa: PLC0415 (see REVISIONS)

                    upgrade(connection)
                    _demand_references(connection)

    @contextlib.contextmanager
    def _unreferenced(self) -> Iterator[Connection]:
        """A connection that lets a migration copy a table which others refer to; SQLite knows no other way to alter one.

        SQLite takes the pragma outside of transactions only, and drops what refers to a dropped table while it is on.
        """
        with self.engine.connect() as connection:
            raw = connection.connection.dbapi_connection
            if not self.is_sqlite or raw is None:
                yield connection
                return
            raw.cursor().execute("PRAGMA foreign_keys=OFF")
            try:
                yield connection
            finally:
                raw.cursor().execute("PRAGMA foreign_keys=ON")

    @contextlib.contextmanager
    def _migration_lock(self) -> Iterator[None]:
        if self.file is not None:
            with Path(f"{self.file}.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # the kernel frees it when the process dies
                yield
        elif self.is_sqlite:
            yield
        else:  # the server frees it when the connection ends
            with self.engine.connect() as connection:
                connection.execute(text("SELECT pg_advisory_lock(:id)"), {"id": _POSTGRES_LOCK})
                try:
                    yield
                finally:
                    connection.execute(
                        text("SELECT pg_advisory_unlock(:id)"), {"id": _POSTGRES_LOCK}
                    )

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_database(url: str) -> Database:
    """Open a database, create its folder, and bring its schema to head."""
    database = Database(url)
    if database.file is not None:
        folder = database.file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot create the folder of the database, {folder}: {error}; "
                "set TRIFORGE_DATABASE_URL to a place that can be written"
            ) from error
    database.upgrade()
    return database


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        shown = re.sub(r"[^/@]*@", "***@", url)  # whatever stands before an @ may be a password
        raise ConfigError(
            f"database_url: given {shown!r}, expected sqlite:///path or postgresql://user@host/name"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")


def _sqlite(url: URL) -> Engine:
    arguments: dict[str, Any] = {"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}
    # in memory one connection is the whole database
    pool = {"poolclass": StaticPool} if _in_memory(url) else {}
    engine = create_engine(url, connect_args=arguments, json_deserializer=from_json, **pool)
    event.listen(engine, "connect", _tune)
    event.listen(engine, "begin", _begin)
    return engine


def _server(url: URL) -> Engine:
    try:
        return create_engine(
            url,
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_TIMEOUT_S},
            json_deserializer=from_json,  # three times as fast as json.loads
        )
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigError(
            f"database_url: no driver for {url.drivername!r} ({error}); "
            f"PostgreSQL needs {install_command('postgres')}"
        ) from None


def _tune(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, see _begin
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes fails at once, busy timeout or not, if another one wrote in between.
    # So writers take the write lock when they begin, and wait their turn there.
    statement = connection.get_execution_options().get("sqlite_begin", "BEGIN IMMEDIATE")
    if statement:
        connection.exec_driver_sql(statement)


_MISSING = re.compile(
    r"no such (table|column): |(relation|column) \"?[\w.]+\"? (of relation \S+ )?does not exist"
)
_DAMAGED = ("disk is full", "No space left", "readonly", "disk I/O", "not a database", "malformed")


def _translate(context: ExceptionContext) -> None:
    error = context.sqlalchemy_exception
    meant = meaning_of(error, str(context.original_exception))
    if meant is not None:
        raise meant from error


def meaning_of(error: Exception | None, said: str) -> TriforgeError | None:
    """Our error for a driver's (`said`, as SQLAlchemy sorted it), with what to look at; None of one for the caller to judge."""
    said = " ".join(said.partition("\nLINE ")[0].split())
    if isinstance(error, DatabaseError) and any(sign in said for sign in _DAMAGED):
        return StorageError(
            f"the database cannot be read or written: {said}; look at the disk and the file"
        )
    if isinstance(error, DataError):  # a NUL, a text too long: what SQLite takes PostgreSQL may not
        return InputError(f"the database cannot hold what was given: {said}")
    if _MISSING.search(said):
        return UnavailableError(
            f"the database has another schema than this version reads ({said}); env_adapter and the trainer bring it up to date "
            "when they start"
        )
    # no right to a table, a read-only standby
    if isinstance(error, (ProgrammingError, InternalError)):
        return StorageError(
            f"the database refuses what it was asked for: {said}; look at TRIFORGE_DATABASE_URL and the rights of its user"
        )
    if isinstance(error, (OperationalError, InterfaceError)):
        mend = "look at TRIFORGE_DATABASE_URL" if "FATAL" in said else "is it running?"
        return UnavailableError(f"the database does not answer ({said}); {mend}")
    return None


def _demand_references(connection: Connection) -> None:
    """Raises StorageError when rows refer to rows that are not there; SQLite was not asked to look meanwhile."""
    if connection.dialect.name != "sqlite":
        return
    lost = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if lost:
        tables = ", ".join(sorted({str(row[0]) for row in lost}))
        raise StorageError(
            f"the schema was not changed: rows of {tables} refer to rows that do not exist; the database is damaged"
        )


def _revision(connection: Connection) -> str | None:
    """The revision that the database says it has; None of one without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None and revision not in REVISIONS:
        raise StorageError(
            f"the database has schema {revision}, which this triforge does not know; "
            "it was written by a newer version: upgrade triforge or use another database_url"
        )
    return revision
