"""Keys are made once and kept as digests; tenants have bounds; clients may not be newer; APIs are not left open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text

from tests.service.keyed import fresh
from triforge.access.exposure import demand_safe, is_loopback
from triforge.access.gate import demand_not_newer
from triforge.access.keys import KeyStore, TenantStore, check_pool_quota, check_run_quota, split
from triforge.config import Settings
from triforge.errors import ConfigError, InputError, NotFoundError, QuotaError, VersionError
from triforge.store.database import Database
from triforge.store.tables import AuditRow, PoolRow, RunRow


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = fresh(tmp_path)
    yield opened
    opened.close()


def test_a_key_says_its_id_and_no_two_are_alike(database: Database) -> None:
    store = KeyStore(database)
    made = [store.create("k", scope="read", tenant="default") for _ in range(3)]
    for key, whole in made:
        parts = split(whole)
        assert parts is not None
        assert parts[0] == key.id
    assert len({whole for _, whole in made}) == 3


def test_no_secret_lies_in_the_database(database: Database) -> None:
    _, whole = KeyStore(database).create("k", scope="read", tenant="default")
    with database.read() as session:
        rows = [
            *session.execute(text("SELECT * FROM api_keys")),
            *session.execute(text("SELECT * FROM audit")),
        ]
    assert whole.split("_", 2)[2] not in str(rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scope", "root"),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "x" * 201),
        ("tenant", "Blue"),
        ("tenant", "a/b"),
        ("tenant", ""),
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


def test_revoking_twice_is_the_same_as_once_and_stands_on_record_once(database: Database) -> None:
    store = KeyStore(database)
    key, _ = store.create("k", scope="read", tenant="blue", by="dana")
    first = store.revoke(key.id, by="dana")
    assert store.revoke(key.id).revoked_at == first.revoked_at
    with pytest.raises(NotFoundError, match="triforge key list"):
        store.revoke("nobody")
    with database.read() as session:
        rows = session.scalars(select(AuditRow).order_by(AuditRow.id)).all()
    assert [(r.action, r.by, r.tenant) for r in rows] == [
        ("key.create", "dana", "blue"),
        ("key.revoke", "dana", "blue"),
    ]


def test_keys_are_listed_by_tenant(database: Database) -> None:
    store = KeyStore(database)
    store.create("a", scope="read", tenant="blue")
    store.create("b", scope="read", tenant="red")
    assert [key.name for key in store.all()] == ["a", "b"]
    assert [key.name for key in store.all(tenant="red")] == ["b"]


def pool(name: str, tenant: str = "blue", state: str = "active") -> PoolRow:
    return PoolRow(
        id=f"pool-{name}", name=name, family="f", options={}, request_digest="", created_at=0.0,
        tenant=tenant, state=state, idempotency_key=None,
    )  # fmt: skip


def run(name: str, status: str, tenant: str = "blue") -> RunRow:
    return RunRow(
        id=name, name=name, pool_id="p", status=status, step=0, policy_version=0, reward_version=0,
        config={}, state={}, reason="", idempotency_key=None, created_at=0.0, updated_at=0.0, tenant=tenant,
    )  # fmt: skip


def test_pools_are_bounded_and_retired_ones_and_others_do_not_count(database: Database) -> None:
    TenantStore(database).set("blue", max_pools=2)
    with database.write() as session:
        session.add_all([pool("a"), pool("b", state="retired"), pool("c", tenant="red")])
    with database.write() as session:
        check_pool_quota(session, "blue", 10**6)
        session.add(pool("d"))
        session.flush()
        with pytest.raises(QuotaError, match="max_pools is 2") as refused:
            check_pool_quota(session, "blue", 1)
    assert (refused.value.status, refused.value.kind) == (429, "quota")
    assert refused.value.retry_after_s is not None


def test_runs_are_bounded_and_ended_ones_do_not_count(database: Database) -> None:
    TenantStore(database).set("blue", max_runs=2)
    with database.write() as session:
        session.add_all([run("a", "queued"), run("b", "finished"), run("c", "running", "red")])
    with database.write() as session:
        check_run_quota(session, "blue")
        session.add(run("d", "stopping"))
        session.flush()
        with pytest.raises(QuotaError, match="max_runs is 2"):
            check_run_quota(session, "blue")
        check_run_quota(session, "red")  # has no bounds


def test_a_bound_is_set_and_taken_away_and_the_others_stay(database: Database) -> None:
    store = TenantStore(database)
    store.set("blue", max_pools=3, max_runs=1)
    assert store.set("blue", max_runs=-1, max_tasks=None).max_pools == 3
    found = {tenant.name: tenant for tenant in store.tenants()}
    assert set(found) == {"blue", "default", "operator"}
    assert (found["blue"].max_runs, found["blue"].max_tasks) == (None, None)
    with pytest.raises(InputError, match="max_runs"):
        store.set("blue", max_runs=-2)


def test_a_bound_that_is_changed_stands_on_record_with_what_it_was(database: Database) -> None:
    store = TenantStore(database)
    store.set("blue", by="dana", max_pools=3)
    store.set("blue", by="dana", max_pools=-1, max_runs=2)
    with database.read() as session:
        rows = session.scalars(select(AuditRow).order_by(AuditRow.id)).all()
    assert {(row.action, row.subject, row.by, row.tenant) for row in rows} == {
        ("tenant.set", "blue", "dana", "blue")
    }
    assert [row.detail for row in rows] == [
        {"before": {"max_pools": None}, "after": {"max_pools": 3}},
        {"before": {"max_pools": 3, "max_runs": None}, "after": {"max_pools": None, "max_runs": 2}},
    ]


@pytest.mark.parametrize(
    "given", ["0.1.0", "0.1.9", "0.1", "0.0.7", "", "nonsense", "9" * 99, "0.1.0.dev1"]
)
def test_a_client_that_is_as_old_or_says_nothing_is_served(given: str) -> None:
    demand_not_newer(given, "0.1.3")


@pytest.mark.parametrize("given", ["0.2.0", "1.0.0", "0.10"])
def test_a_newer_client_is_told_to_upgrade_the_service(given: str) -> None:
    with pytest.raises(VersionError, match="upgrade the service") as refused:
        demand_not_newer(given, "0.1.3")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("10.0.0.4", False), ("::", False), ("service", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_reaches_loopback(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside


def test_a_api_for_other_machines_must_be_said_to_be_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    demand_safe(Settings())
    with pytest.raises(ConfigError, match="TRIFORGE_AUTH=keys"):
        demand_safe(Settings(host="0.0.0.0"))
    with caplog.at_level(logging.WARNING):
        demand_safe(Settings(host="0.0.0.0", auth="open"))
    assert "whoever reaches it may do everything" in caplog.text


@pytest.mark.parametrize("secret", ["", "short"])
def test_keys_without_a_good_secret_for_the_services_are_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="TRIFORGE_SERVICE_SECRET"):
        demand_safe(Settings(auth="keys", service_secret=SecretStr(secret)))
    demand_safe(Settings(auth="keys", service_secret=SecretStr("x" * 24), host="0.0.0.0"))


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
