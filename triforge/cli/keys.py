"""`triforge key`: who may use the APIs of a deployment.

The commands use the deployment's database, not an API: who can reach it is its operator, and the first key has to come from
somewhere.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from triforge.access.callers import DEFAULT
from triforge.access.gate import KNOWN_S
from triforge.access.keys import Key, KeyStore
from triforge.cli.deployment import STATE, StateOption, stores
from triforge.cli.terminal import console, grid, say
from triforge.store.database import Database, open_database

key_app = typer.Typer(no_args_is_help=True)


def _database(state: Path) -> closing[Database]:
    return closing(open_database(stores(state).database_url))


@key_app.command("create")
def key_create(
    name: Annotated[str, Argument(help="Name for people, e.g. nightly.")],
    scope: Annotated[str, Option(help="read, submit (make and steer), admin.")] = "submit",
    tenant: Annotated[str, Option("--tenant", help="Tenant; made if missing.")] = DEFAULT,
    days: Annotated[float | None, Option(help="Lifetime in days; else for ever.")] = None,
    state: StateOption = STATE,
) -> None:
    """Make a key and print it once; the database keeps only its digest."""
    with _database(state) as database:
        key, text = KeyStore(database).create(name, scope=scope, tenant=tenant, days=days)
    typer.echo(
        f"key {key.id}: scope {key.scope}, tenant {key.tenant}; clients take it from TRIFORGE_KEY",
        err=True,
    )
    typer.echo(text)


@key_app.command("list")
def key_list(
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    state: StateOption = STATE,
) -> None:
    """List all keys, without their secrets."""
    table = grid("id", "name", "tenant", "scope", "state", "made", "last used")
    with _database(state) as database:
        for key in KeyStore(database).all(tenant=tenant or None):
            table.add_row(
                key.id, key.name, key.tenant, key.scope, _state(key), _minute(key.created_at), _minute(key.last_used_at)
            )  # fmt: skip
    console.print(table)


@key_app.command("revoke")
def key_revoke(
    key_id: Annotated[str, Argument(help="Id of the key: the part between the two _.")],
    state: StateOption = STATE,
) -> None:
    """End a key for good."""
    with _database(state) as database:
        key = KeyStore(database).revoke(key_id)
    say(f"key {key.id} ({key.name}) is revoked; every API refuses it within {KNOWN_S:g} s")


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {_minute(key.revoked_at)}"
    if key.expires_at is None:
        return "good"
    expired = key.expires_at <= time.time()
    return f"{'ended' if expired else 'good until'} {_minute(key.expires_at)}"


def _minute(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
