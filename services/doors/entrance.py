"""How a room of this deployment is entered, by its settings."""

from __future__ import annotations

from services.doors.guard import Entrance
from triforge.access.modes import make_gate
from triforge.access.requests import RequestRecord
from triforge.config import Settings
from triforge.queues.buckets import Buckets
from triforge.store.database import Database


def entrance_of(settings: Settings, room: str, database: Database | None = None) -> Entrance:
    """The entrance of a room.

    Args:
        settings: of the deployment.
        room: for the record.
        database: at head, of a room that has one; others open it where keys are asked for, and leave its schema alone.

    Raises:
        ConfigError: the door would be open to strangers, or the services' secret is missing.
    """
    if database is None and settings.keyed:
        database = Database(settings.database_url)
    limiter = Buckets(settings.redis_url) if settings.keyed else None
    return Entrance(
        gate=make_gate(settings, database, limiter),
        record=None if database is None else RequestRecord(database, room),
        origins=settings.cors_origins,
    )
