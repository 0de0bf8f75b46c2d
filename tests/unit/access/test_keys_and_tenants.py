"""Keys are made once and stored as digests; newer clients are refused; an open API must be permitted."""

from __future__ import annotations

import logging

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from triforge.access.exposure import is_loopback, require_safe
from triforge.access.gate import require_served_version
from triforge.access.keys import KeyStore, parse_key
from triforge.config import Settings
from triforge.errors import ConfigError, InputError, NotFoundError, VersionError
from triforge.store.database import Database


def test_a_key_says_its_id_and_no_secret_lies_in_the_database(database: Database) -> None:
    key, whole = KeyStore(database).create("k", scope="read", tenant="default")
    parts = parse_key("tfk", whole)
    assert parts is not None
    assert parts[0] == key.id
    with database.read() as session:
        rows = session.execute(text("SELECT * FROM api_keys")).all()
    assert whole.split("_", 2)[2] not in str(rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scope", "root"),
        ("name", "a\nb"),
        ("tenant", "a/b"),
        ("days", 0.0),
        ("days", float("nan")),
    ],
)
def test_an_impossible_key_is_refused_and_the_field_named(
    database: Database, field: str, value: object
) -> None:
    given = {"name": "k", "scope": "read", "tenant": "default", "days": None, field: value}
    name = str(given.pop("name"))
    with pytest.raises(InputError, match=field):
        KeyStore(database).create(name, **given)  # type: ignore[arg-type]
    assert KeyStore(database).all() == []


def test_revoking_twice_is_the_same_as_once(database: Database) -> None:
    store = KeyStore(database)
    key, _ = store.create("k", scope="read", tenant="blue")
    first = store.revoke(key.id)
    assert store.revoke(key.id).revoked_at == first.revoked_at
    with pytest.raises(NotFoundError, match="triforge key list"):
        store.revoke("missing")


def test_keys_are_listed_by_tenant(database: Database) -> None:
    store = KeyStore(database)
    store.create("a", scope="read", tenant="blue")
    store.create("b", scope="read", tenant="red")
    assert [key.name for key in store.all()] == ["a", "b"]
    assert [key.name for key in store.all(tenant="red")] == ["b"]


@pytest.mark.parametrize(
    "given", ["0.1.0", "0.1.9", "0.1", "0.0.7", "", "nonsense", "9" * 99, "0.1.0.dev1"]
)
def test_a_client_that_is_as_old_or_says_nothing_is_served(given: str) -> None:
    require_served_version(given, "0.1.3")


@pytest.mark.parametrize("given", ["0.2.0", "1.0.0", "0.10"])
def test_a_newer_client_is_refused(given: str) -> None:
    with pytest.raises(VersionError, match="upgrade the service") as refused:
        require_served_version(given, "0.1.3")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("10.0.0.4", False), ("::", False), ("service", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_reaches_loopback(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside


def test_an_open_api_for_other_machines_must_be_permitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    require_safe(Settings())
    with pytest.raises(ConfigError, match="TRIFORGE_AUTH=keys"):
        require_safe(Settings(host="0.0.0.0"))
    with caplog.at_level(logging.WARNING):
        require_safe(Settings(host="0.0.0.0", auth="open"))
    assert "TRIFORGE_AUTH" in caplog.text


@pytest.mark.parametrize("secret", ["", "short"])
def test_keys_without_a_good_secret_for_the_services_are_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="TRIFORGE_SERVICE_SECRET"):
        require_safe(Settings(auth="keys", service_secret=SecretStr(secret)))
    require_safe(Settings(auth="keys", service_secret=SecretStr("x" * 24), host="0.0.0.0"))


def test_the_settings_show_no_secret_to_people_and_no_key_of_a_person_to_children() -> None:
    settings = Settings(
        auth="keys", service_secret=SecretStr("of-the-services-" * 2), key=SecretStr("tfk_of_a_person"),
        database_url="postgresql://triforge:hunter2@db/triforge", redis_url="redis://:s3cret@redis/0",
    )  # fmt: skip
    for shown in (repr(settings), str(settings)):
        for secret in ("hunter2", "s3cret", "of-the-services", "tfk_of_a_person"):
            assert secret not in shown
    children = settings.environment()
    assert children["TRIFORGE_SERVICE_SECRET"] == "of-the-services-" * 2
    assert "TRIFORGE_KEY" not in children
