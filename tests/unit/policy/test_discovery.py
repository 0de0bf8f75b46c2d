"""Where engines are: lists, names, a router; and what is done when that cannot be found out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.policy.__main__ import build_pool
from services.policy.engines.discovery import RESOLVE_S, Directory, Source, parse_sources
from services.policy.engines.sglang_parsing import worker_urls
from triforge.config import Settings
from triforge.errors import ConfigError, PolicyError, UnavailableError


class Names:
    """A name server under a test's control, and a clock that makes every look count."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] | Exception = hosts
        self.asked: list[tuple[str, int]] = []
        self.now = 0.0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if isinstance(self.hosts, Exception):
            raise self.hosts
        return self.hosts

    def clock(self) -> float:
        self.now += RESOLVE_S
        return self.now

    def directory(self, text: str) -> Directory:
        return Directory(parse_sources(text), resolve=self, clock=self.clock)


def test_entries_are_addresses_names_or_a_router() -> None:
    assert parse_sources(" http://a:1/, https://b ,dns://s:3,dns+http://t:4 ") == [
        Source("address", "http://a:1"),
        Source("address", "https://b"),
        Source("dns", "http://s:3"),
        Source("dns", "http://t:4"),
    ]
    assert parse_sources("router+http://r:30000") == [Source("router", "http://r:30000")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" , ", "given none"),
        ("localhost:9001", "expected http://host:port"),
        ("ftp://a:1", "expected http://host:port"),
        ("http://", "expected http://host:port"),
        ("http://a:99999999", "expected http://host:port"),
        ("dns://s", "dns+http://name:port"),
        ("dns+https://s:1", "certificate"),
        ("router+http://r:1,http://a:1", "a router stands alone"),
    ],
)
def test_an_entry_that_cannot_work_is_refused_with_what_was_expected(
    text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match="TRIFORGE_ENGINES") as caught:
        parse_sources(text)
    assert sentence in caught.value.detail


def test_a_router_and_a_pause_in_place_do_not_go_together() -> None:
    settings = Settings(engines="router+http://r:1", pause_mode="in_place")
    with pytest.raises(ConfigError, match="TRIFORGE_PAUSE_MODE: given 'in_place' with a router"):
        build_pool(settings)


async def test_a_name_is_one_engine_for_each_of_its_addresses_old_and_new() -> None:
    names = Names("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")
    directory = names.directory("dns+http://engines:30000,http://own:1")
    assert await directory.find() == [
        "http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://[fd00::1]:30000", "http://own:1",
    ]  # fmt: skip
    assert names.asked == [("engines", 30000)]
    names.hosts = ("10.0.0.3",)
    assert await directory.find() == ["http://10.0.0.3:30000", "http://own:1"]


@pytest.mark.parametrize("failure", [OSError("no name server"), TimeoutError(), ()])
async def test_a_name_server_that_is_away_removes_no_engine(failure: Any) -> None:
    names = Names("10.0.0.1")
    directory = names.directory("dns://engines:30000")
    known = await directory.find()
    names.hosts = failure
    assert await directory.find() == known == ["http://10.0.0.1:30000"]


async def test_names_are_not_resolved_more_often_than_every_few_seconds() -> None:
    names = Names("10.0.0.1")
    directory = Directory(parse_sources("dns://e:1"), resolve=names, clock=lambda: 0.0)
    assert await directory.find() is not None
    assert await directory.find() is None
    assert len(names.asked) == 1


class Router:
    url = "http://r:1"

    def __init__(self) -> None:
        self.known: Sequence[str] | None = ["http://b:1", "http://a:1"]

    async def workers(self) -> Sequence[str]:
        if self.known is None:
            raise UnavailableError("the router is away")
        return self.known


async def test_the_engines_behind_a_router_are_those_it_lists_or_those_named_apart() -> None:
    router, names = Router(), Names("10.0.0.1")
    listed = Directory([], router=router, clock=names.clock)
    assert await listed.find() == ["http://a:1", "http://b:1"]
    router.known = None
    assert await listed.find() == ["http://a:1", "http://b:1"]
    apart = Directory(parse_sources("dns://w:1"), router=router, resolve=names, clock=names.clock)
    assert await apart.find() == ["http://10.0.0.1:1"]


def test_a_router_s_list_is_read_without_the_dead() -> None:
    rows = [
        {"url": "http://a:1", "worker_type": "regular", "is_healthy": True},
        {"url": "http://b:1/", "worker_type": "regular"},
        {"url": "http://c:1", "worker_type": "regular", "is_healthy": False},
    ]
    assert worker_urls({"workers": rows}, "http://r") == ["http://a:1", "http://b:1"]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "answered"),
        ({"workers": "none"}, "answered"),
        ({"workers": [{"url": "grpc://a:1"}]}, "expected regular workers that speak HTTP"),
        ({"workers": [{"url": "http://a:1", "worker_type": "prefill"}]}, "of type prefill"),
    ],
)
def test_workers_whose_weights_cannot_be_replaced_are_refused(found: Any, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        worker_urls(found, "http://r")
