"""The gate: keys, scopes, the services' secret, and the cache of keys."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from triforge.access.callers import UNRESTRICTED, Caller, Requirement
from triforge.access.gate import KNOWN_S, SERVICE, STRANGER, Gate, KeyCache
from triforge.access.keys import Key, KeyStore
from triforge.errors import (
    ForbiddenError,
    InputError,
    UnauthorizedError,
    UnavailableError,
)
from triforge.store.database import Database

SECRET = "a secret of the services, long enough"


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Counting(KeyStore):
    """A store that says which keys it was asked for, that may be away, and that may be slow."""

    away = False

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database, clock=clock)
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()

    def find(self, key_id: str) -> Key | None:
        self.asked.append(key_id)
        assert self.answers.wait(20)
        if self.away:
            raise UnavailableError("the database does not answer")
        return super().find(key_id)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database, clock: Clock) -> Counting:
    return Counting(database, clock=clock)


@pytest.fixture
async def gate(store: Counting, clock: Clock) -> AsyncIterator[Gate]:
    made = Gate(KeyCache(store, clock=clock), service_secret=SECRET, clock=clock)
    yield made
    await made.drain()


async def admit(gate: Gate, sent: bytes, wanted: Requirement, *, tenant: str = "") -> Caller:
    who = await gate.identify(sent, tenant=tenant, public=wanted == "public")
    gate.authorize(who, wanted)
    return who


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


ORDER = ("read", "submit", "admin")


@pytest.mark.parametrize("scope", ORDER)
@pytest.mark.parametrize("wanted", ["public", *ORDER, "operator", "service"])
@pytest.mark.parametrize("tenant", ["default", "blue", "operator"])
async def test_a_key_opens_what_its_scope_and_tenant_say(
    gate: Gate, store: Counting, scope: str, wanted: Requirement, tenant: str
) -> None:
    _, text = store.create("k", scope=scope, tenant=tenant)
    if wanted in ORDER:
        allowed = ORDER.index(scope) >= ORDER.index(wanted)
    else:
        allowed = wanted == "public" or (
            wanted == "operator" and (tenant, scope) == ("operator", "admin")
        )
    if not allowed:
        with pytest.raises(ForbiddenError):
            await admit(gate, bearer(text), wanted)
        return
    who = await admit(gate, bearer(text), wanted)
    if wanted == "public":
        assert who == STRANGER
        assert not who.sees("default")
        return
    assert (who.tenant, who.everything, who.name) == (tenant, tenant == "operator", "k")
    assert who.sees(tenant)
    assert who.sees("red") == (tenant == "operator")


@pytest.mark.parametrize("wanted", [*ORDER, "operator", "service"])
async def test_the_secret_of_the_services_opens_everything(gate: Gate, wanted: Requirement) -> None:
    assert await admit(gate, bearer(SECRET), wanted) == SERVICE


async def test_a_service_asks_for_a_tenant_and_sees_no_more_than_it(gate: Gate) -> None:
    who = await admit(gate, bearer(SECRET), "read", tenant="blue")
    assert (who.tenant, who.everything) == ("blue", False)
    with pytest.raises(InputError, match="tenant"):
        await admit(gate, bearer(SECRET), "read", tenant="no such / name")


@pytest.mark.parametrize(
    "authorization",
    [
        b"",
        b"Bearer ",
        b"Bearer tfk_",
        b"Bearer tfk_0123456789ab_" + b"x" * 43,
        b"Bearer tfk_0123456789ab_" + b"x" * 100_000,
        b"Basic dGZrOng=",
        b"Bearer " + SECRET[:-1].encode(),
        b"Bearer " + SECRET.encode() + b" ",
        b"\xff\xfe\x00",
    ],
)
async def test_whatever_is_no_key_opens_nothing(gate: Gate, authorization: bytes) -> None:
    with pytest.raises(UnauthorizedError, match="key"):
        await admit(gate, authorization, "read")


async def test_a_key_opens_neither_another_tenant_nor_with_anothers_secret(
    gate: Gate, store: Counting
) -> None:
    _, mine = store.create("mine", scope="admin", tenant="blue")
    _, other = store.create("other", scope="admin", tenant="default")
    assert (await admit(gate, bearer(mine), "read", tenant="red")).tenant == "blue"
    forged = "_".join([*mine.split("_")[:2], *other.split("_", 2)[2:]])
    with pytest.raises(UnauthorizedError, match="not known"):
        await admit(gate, bearer(forged), "read")


async def test_a_revoked_key_closes_everywhere_within_the_time_that_is_promised(
    gate: Gate, store: Counting, clock: Clock
) -> None:
    key, text = store.create("k", scope="read", tenant="default")
    await admit(gate, bearer(text), "read")
    store.revoke(key.id)
    clock.now += KNOWN_S - 0.1
    await admit(gate, bearer(text), "read")  # still remembered
    clock.now += 0.2
    with pytest.raises(UnauthorizedError, match="revoked"):
        await admit(gate, bearer(text), "read")


async def test_a_key_ends_on_its_last_day(gate: Gate, store: Counting, clock: Clock) -> None:
    _, text = store.create("k", scope="read", tenant="default", days=1)
    clock.now += 86_399
    await admit(gate, bearer(text), "read")
    clock.now += 2
    with pytest.raises(UnauthorizedError, match="expired"):
        await admit(gate, bearer(text), "read")


async def test_many_who_ask_at_once_ask_the_database_once(gate: Gate, store: Counting) -> None:
    _, text = store.create("k", scope="read", tenant="default")
    await asyncio.gather(*(admit(gate, bearer(text), "read") for _ in range(50)))
    assert len(store.asked) == 1


def unknown(number: int) -> bytes:
    return bearer(f"tfk_{number:012x}_" + "x" * 43)


async def outcomes(gate: Gate, sent: list[bytes]) -> list[str]:
    """Return the results of concurrent requests."""
    found = await asyncio.gather(
        *(admit(gate, one, "read") for one in sent), return_exceptions=True
    )
    return [one.tenant if isinstance(one, Caller) else type(one).__name__ for one in found]


async def test_a_key_that_was_just_made_opens_while_strangers_try_many(
    gate: Gate, store: Counting
) -> None:
    store.answers.clear()
    strangers = asyncio.create_task(outcomes(gate, [unknown(number) for number in range(1000)]))
    await asyncio.sleep(0.1)
    assert len(store.asked) == 2, "few at a time"
    _, text = store.create("k", scope="read", tenant="blue")
    assert await outcomes(gate, [bearer(text)]) == ["BusyError"]  # too many wait; none is forgotten
    store.answers.set()
    assert set(await strangers) == {"UnauthorizedError"}
    assert len(store.asked) == 1000
    assert await outcomes(gate, [bearer(text)]) == ["blue"]


async def test_a_key_that_was_good_before_is_looked_up_before_those_of_strangers(
    gate: Gate, store: Counting, clock: Clock
) -> None:
    key, text = store.create("k", scope="read", tenant="blue")
    await admit(gate, bearer(text), "read")
    clock.now += KNOWN_S
    store.answers.clear()
    strangers = asyncio.create_task(outcomes(gate, [unknown(number) for number in range(1000)]))
    await asyncio.sleep(0.1)
    known = asyncio.create_task(admit(gate, bearer(text), "read"))
    while store.asked[-1] != key.id:  # noqa: ASYNC110 (it is under way, in a thread)
        await asyncio.sleep(0)
    assert len(store.asked) == 4, "once before, and now next to two strangers"
    store.answers.set()
    assert (await known).tenant == "blue"
    await strangers


async def test_without_the_database_services_go_on_and_keys_are_asked_for_again(
    gate: Gate, store: Counting
) -> None:
    _, text = store.create("k", scope="read", tenant="default")
    store.away = True
    with pytest.raises(UnavailableError):
        await admit(gate, bearer(text), "read")
    assert await admit(gate, bearer(SECRET), "service") == SERVICE
    store.away = False
    await admit(gate, bearer(text), "read")  # what failed was not remembered


async def test_the_last_use_of_a_key_is_noted_once_a_minute(
    gate: Gate, store: Counting, clock: Clock
) -> None:
    key, text = store.create("k", scope="read", tenant="default")
    first = clock.now
    for _ in range(3):
        await admit(gate, bearer(text), "read")
        await gate.drain()
        clock.now += 20
    assert [k.last_used_at for k in store.all()] == [first]
    await admit(gate, bearer(text), "read")
    await gate.drain()
    assert [k.last_used_at for k in store.all()] == [clock.now]
    assert key.last_used_at is None


async def test_an_open_deployment_lets_everybody_in_whatever_they_send() -> None:
    gate = Gate(None)
    for sent in (b"", b"Bearer tfk_x", bearer(SECRET)):
        assert await admit(gate, sent, "service", tenant="red") == UNRESTRICTED
    assert not gate.is_service(bearer(""))


async def test_an_empty_secret_admits_no_caller(store: Counting) -> None:
    gate = Gate(KeyCache(store))
    for sent in (b"Bearer ", b"Bearer", b""):
        assert not gate.is_service(sent)
        with pytest.raises(UnauthorizedError):
            await admit(gate, sent, "service")


def test_what_is_kept_of_a_key_does_not_open_anything(database: Database) -> None:
    store = KeyStore(database)
    key, text = store.create("k", scope="admin", tenant="default")
    secret = text.split("_", 2)[2]
    assert key.opens(secret)
    assert not key.opens(key.digest)
    assert secret not in repr(store.all())
