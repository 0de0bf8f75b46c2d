"""How a service of this deployment is entered, by its settings."""

from __future__ import annotations

from triforge.access.modes import make_gate
from triforge.access.requests import RequestRecord
from triforge.broker.buckets import Buckets
from triforge.config import Settings
from triforge.store.database import Database
from triforge.web.guard import Entrance


def entrance_of(settings: Settings, service: str, database: Database | None = None) -> Entrance:
    """The entrance of a service.

    Args:
        settings: of the deployment.
        service: for the record.
        database: at head, of a service that has one; others open it where keys are asked for, and leave its schema alone.

    Raises:
        ConfigError: the API would be open to strangers, or the services' secret is missing.
    """
    if database is None and settings.keyed:
        database = Database(settings.database_url)
    limiter = Buckets(settings.redis_url) if settings.keyed else None
    return Entrance(
        gate=make_gate(settings, database, limiter),
        record=None if database is None else RequestRecord(database, service),
        origins=settings.cors_origins,
    )
