"""The database behind every service: SQLite's locking, PostgreSQL's driver and the version of the schema.

`open_database` opens one and brings its schema up to date. Sessions are synchronous; services call them in threads. Failures
become errors of `triforge.errors`: a database that does not answer is `UnavailableError`, a full disk is `StorageError`.
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

_BUSY_TIMEOUT_S = 30  # longest wait of a writer for another writer
_CONNECT_TIMEOUT_S = 5
_POSTGRES_LOCK = 0x7_21F0_26E  # a number of our own; names the lock of migrations
_MIGRATIONS = Path(__file__).with_name("migrations")
# Oldest first: the number at the beginning of each script's name. Loading Alembic at every start would take longer.
REVISIONS = sorted(path.name.partition("_")[0] for path in _MIGRATIONS.glob("versions/[0-9]*.py"))


class Database:
    """The database of a deployment, by an SQLAlchemy URL; ConfigError if the URL is invalid or its driver is missing."""

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._in_memory = self.is_sqlite and self.url.database in (None, "", ":memory:")
        self.engine = self._sqlite() if self.is_sqlite else self._server()
        event.listen(self.engine, "handle_error", _translate)
        # Readers of SQLite need no write lock; all other transactions begin with it (see _begin).
        reading = self.engine.execution_options(sqlite_begin="BEGIN")
        self._read = sessionmaker(reading, expire_on_commit=False)
        self._write = sessionmaker(self.engine, expire_on_commit=False)

    def _sqlite(self) -> Engine:
        arguments: dict[str, Any] = {"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False}
        # in memory one connection is the whole database
        pool = {"poolclass": StaticPool} if self._in_memory else {}
        engine = create_engine(
            self.url, connect_args=arguments, json_deserializer=from_json, **pool
        )
        event.listen(engine, "connect", _tune)
        event.listen(engine, "begin", _begin)
        return engine

    def _server(self) -> Engine:
        try:
            return create_engine(
                self.url,
                pool_pre_ping=True,
                connect_args={"connect_timeout": _CONNECT_TIMEOUT_S},
                json_deserializer=from_json,  # three times as fast as json.loads
            )
        except (ImportError, NoSuchModuleError) as error:
            raise ConfigError(
                f"database_url: no driver for {self.url.drivername!r} ({error}); "
                f"PostgreSQL needs {install_command('postgres')}"
            ) from None

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None for a server's database and for one in memory."""
        return Path(str(self.url.database)) if self.is_sqlite and not self._in_memory else None

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """Open a transaction that only reads."""
        with self._read() as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction: committed at the end of the block, rolled back when it raises."""
        with self._write.begin() as session:
            yield session

    def now(self, session: Session) -> float:
        """Return the time in seconds since 1970 by the clock of the database, which all services share."""
        clock = "(julianday('now') - 2440587.5) * 86400" if self.is_sqlite else "extract(epoch FROM clock_timestamp())"  # fmt: skip
        return float(session.execute(text(f"SELECT {clock}")).scalar_one())

    def ping(self) -> None:
        """Raise UnavailableError when the database does not answer."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def schema(self) -> tuple[str | None, str]:
        """Return the revision of the database, None if it is empty, and that of this version. Change nothing."""
        if self.file is not None and not self.file.exists():
            return None, REVISIONS[-1]
        with self.engine.connect() as connection:
            return _revision(connection), REVISIONS[-1]

    def upgrade(self) -> None:
        """Create the tables, or bring them up to date; of several processes that start at once, one does so."""
        with self._migration_lock():
            if self.is_sqlite:
                # The file remembers the mode. The change fails while another process reads, so it needs the lock.
                with self.engine.execution_options(sqlite_begin="").connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            with self.engine.begin() as connection:
                revision = _revision(connection)
                if revision != REVISIONS[-1]:
                    _migrate(connection, revision)

    @contextlib.contextmanager
    def _migration_lock(self) -> Iterator[None]:
        if self.file is not None:
            with Path(f"{self.file}.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # released when the process dies
                yield
        elif self.is_sqlite:
            yield
        else:  # released when the connection ends
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
    """Open a database, create its folder, and bring its schema up to date."""
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
        shown = re.sub(r"[^/@]*@", "***@", url)  # there may be a password before the @
        raise ConfigError(
            f"database_url: given {shown!r}, expected sqlite:///path or postgresql://user@host/name"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _tune(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin in _begin
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes fails at once, busy timeout or not, if another one wrote in between.
    # So writers take the write lock when they begin, and wait for it there.
    statement = connection.get_execution_options().get("sqlite_begin", "BEGIN IMMEDIATE")
    if statement:
        connection.exec_driver_sql(statement)


def _migrate(connection: Connection, revision: str | None) -> None:
    import alembic.command  # noqa: PLC0415 (see REVISIONS)
    from alembic.config import Config  # noqa: PLC0415

    from triforge.store.tables import Base  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    if revision is None:
        Base.metadata.create_all(connection)
        alembic.command.stamp(config, "head")
    else:
        alembic.command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    """Return the revision of the database; None of one without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None and revision not in REVISIONS:
        mend = (
            "a newer triforge wrote it: upgrade triforge or use another database_url"
            if revision > REVISIONS[-1]
            else "open it once with the last triforge 0.1, which brings it up to date"
        )
        raise StorageError(
            f"the database has schema {revision}, expected one of {REVISIONS}; {mend}"
        )
    return revision


_MISSING = re.compile(
    r"no such (table|column): |(relation|column) \"?[\w.]+\"? (of relation \S+ )?does not exist"
)
_DAMAGED = ("disk is full", "No space left", "readonly", "disk I/O", "not a database", "malformed")


def _translate(context: ExceptionContext) -> None:
    error = context.sqlalchemy_exception
    ours = our_error(error, str(context.original_exception))
    if ours is not None:
        raise ours from error


def our_error(error: Exception | None, message: str) -> TriforgeError | None:
    """Return our error for a driver's, which SQLAlchemy has classified; None if the caller has to handle it."""
    message = " ".join(message.partition("\nLINE ")[0].split())
    if isinstance(error, DatabaseError) and any(sign in message for sign in _DAMAGED):
        return StorageError(
            f"the database cannot be read or written: {message}; look at the disk and the file"
        )
    if isinstance(error, DataError):  # a NUL, a text too long: PostgreSQL refuses what SQLite takes
        return InputError(f"the database cannot hold the value: {message}")
    if _MISSING.search(message):
        return UnavailableError(
            f"the database has another schema than this version reads ({message}); env_adapter and the trainer bring it "
            "up to date when they start"
        )
    # no right to a table, a read-only standby
    if isinstance(error, (ProgrammingError, InternalError)):
        return StorageError(
            f"the database refuses the statement: {message}; look at TRIFORGE_DATABASE_URL and the rights of its user"
        )
    if isinstance(error, (OperationalError, InterfaceError)):
        mend = "look at TRIFORGE_DATABASE_URL" if "FATAL" in message else "is it running?"
        return UnavailableError(f"the database does not answer ({message}); {mend}")
    return None
