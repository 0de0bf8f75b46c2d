"""`triforge key | tenant`: who may ask, and how much of a deployment they may take.

They speak to the deployment's database and not to an API: whoever can reach it is its operator, and the first key must come
from somewhere.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from triforge.access.callers import DEFAULT
from triforge.access.gate import KNOWN_S
from triforge.access.keys import Key, KeyStore
from triforge.cli.deployment import kept
from triforge.cli.options import STATE, StateOption
from triforge.cli.terminal import console, grid, say
from triforge.store.database import Database, open_database

key_app = typer.Typer(no_args_is_help=True)

TenantOption = Annotated[str, typer.Option("--tenant", help="Whose; made if there is none.")]


def _database(state: Path) -> closing[Database]:
    return closing(open_database(kept(state).database_url))


@key_app.command("create")
def key_create(
    name: Annotated[str, typer.Argument(help="For people, e.g. nightly.")],
    scope: Annotated[
        str, typer.Option(help="read, submit (makes and steers) or admin (also for good).")
    ] = "submit",
    tenant: TenantOption = DEFAULT,
    days: Annotated[float | None, typer.Option(help="Until it ends; without, never.")] = None,
    state: StateOption = STATE,
) -> None:
    """Make a key and print it, once: what is kept of it cannot be turned back."""
    with _database(state) as database:
        key, text = KeyStore(database).create(name, scope=scope, tenant=tenant, days=days)
    typer.echo(
        f"key {key.id}: scope {key.scope}, tenant {key.tenant}; clients take it from TRIFORGE_KEY",
        err=True,
    )
    typer.echo(text)


@key_app.command("list")
def key_list(
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    state: StateOption = STATE,
) -> None:
    """All keys; their secrets are not kept."""
    table = grid("id", "name", "tenant", "scope", "state", "made", "last used")
    with _database(state) as database:
        for key in KeyStore(database).all(tenant=tenant or None):
            table.add_row(
                key.id, key.name, key.tenant, key.scope, _state(key), _day(key.created_at), _day(key.last_used_at)
            )  # fmt: skip
    console.print(table)


@key_app.command("revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key: what stands between the two _.")],
    state: StateOption = STATE,
) -> None:
    """End a key for good."""
    with _database(state) as database:
        key = KeyStore(database).revoke(key_id)
    say(f"key {key.id} ({key.name}) is revoked; every API refuses it within {KNOWN_S:g} s")


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)}"
    if key.expires_at is None:
        return "good"
    past = key.expires_at <= time.time()
    return f"{'ended' if past else 'good until'} {_day(key.expires_at)}"


def _day(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
