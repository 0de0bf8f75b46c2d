"""Engines by address and by name, also while the name server is away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.policy.engines.discovery import RESOLVE_S, Directory, Source, parse_sources
from triforge.errors import ConfigError


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


def test_entries_are_addresses_or_names() -> None:
    assert parse_sources("vllm+http://a:1/,vllm+dns://s:3") == [
        Source("vllm+http://a:1"),
        Source("vllm+http://s:3", by_name=True),
    ]
    assert parse_sources(" http://a:1/, https://b ,dns://s:3,dns+http://t:4 ") == [
        Source("http://a:1"),
        Source("https://b"),
        Source("http://s:3", by_name=True),
        Source("http://t:4", by_name=True),
    ]


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
    ],
)
def test_impossible_entry_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match="TRIFORGE_ENGINES") as caught:
        parse_sources(text)
    assert sentence in caught.value.detail


async def test_a_name_is_one_engine_for_each_of_its_addresses_old_and_new() -> None:
    names = Names("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1")
    directory = names.directory("dns+http://engines:30000,http://own:1")
    assert await directory.find() == [
        "http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://[fd00::1]:30000", "http://own:1",
    ]  # fmt: skip
    assert names.asked == [("engines", 30000)]
    names.hosts = ("10.0.0.3",)
    assert await directory.find() == ["http://10.0.0.3:30000", "http://own:1"]


async def test_the_kind_of_an_engine_stays_with_the_addresses_of_its_name() -> None:
    directory = Names("10.0.0.1").directory("vllm+dns://engines:30000")
    assert await directory.find() == ["vllm+http://10.0.0.1:30000"]


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
