"""Egress of the workers: by address, by the address of a name, and by the target of a redirect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from environments.openenv.family import OpenEnvFamily
from environments.osworld.family import OsworldFamily
from tests.unit.environments.tasks import task_of
from triforge.config import Settings
from triforge.environments.egress import EgressPolicy, place_of
from triforge.errors import ConfigError, EnvError, InputError
from triforge.types import Params


def passes(egress: EgressPolicy, url: str, *, looked_up: bool = True) -> bool:
    try:
        egress.demand(*place_of(url), "field", looked_up=looked_up)
    except InputError:
        return False
    return True


PRIVATE = (
    "http://127.0.0.1:8000", "http://localhost:8000", "http://a.localhost", "http://10.0.0.1", "http://192.168.1.1:80",
    "http://169.254.169.254/latest", "http://[::1]:80", "http://[fd00::1]", "http://[::ffff:10.0.0.1]", "http://0.0.0.0",
    "http://[64:ff9b::a00:1]", "http://[2002:a00:1::]", "http://100.64.0.1", "http://224.0.0.1", "http://255.255.255.255",
    "http://LOCALHOST.:8000", "http://user@127.0.0.1",
    # what `is_global` of some releases of Python lets through
    "http://192.0.0.192", "http://192.0.0.8", "http://192.88.99.1", "http://168.63.129.16", "http://[::ffff:168.63.129.16]",
    "http://[64:ff9b:1::a00:1]", "http://[64:ff9b::a83f:8110]", "http://[2002:a83f:8110::1]", "http://[::127.0.0.1]",
    "http://[::ffff:0:10.0.0.1]", "http://[2001:0:4136:e378:8000:63bf:f5ff:fffe]", "http://[fec0::1]", "http://[3fff::1]",
    "http://[5f00::1]", "http://[100::1]", "http://100.100.100.200", "http://[fd00:ec2::254]", "http://[fe80::a9fe:a9fe]",
)  # fmt: skip


@pytest.mark.parametrize("url", PRIVATE)
def test_what_is_public_leaves_out_every_way_to_write_what_is_not(url: str) -> None:
    assert not passes(EgressPolicy("public"), url)
    assert passes(EgressPolicy("any"), url)


def test_public_addresses_and_names_pass_until_a_name_is_looked_up() -> None:
    wrapped = "http://[::ffff:8.8.8.8]", "http://[64:ff9b::808:808]", "http://[2002:808:808::1]"
    plain = "https://8.8.8.8", "http://[2606:4700::1111]:8000", "https://envs.example.org/x"
    for url in plain + wrapped:
        assert passes(EgressPolicy("public"), url)
    assert passes(EgressPolicy("public"), "http://1.1.1.1:5000", looked_up=False)
    assert not passes(EgressPolicy("public"), "http://machine:5000", looked_up=False)


@pytest.mark.parametrize(
    ("listed", "good", "bad"),
    [
        ("envs", ["http://envs:1", "http://ENVS.:2"], ["http://10.0.0.1", "http://127.0.0.1"]),
        ("envs:8000", ["http://envs:8000"], ["http://127.0.0.1:8000"]),
        ("*.example.org", ["http://a.example.org", "http://b.a.example.org"], ["http://10.1.1.1"]),
        ("10.1.0.0/16", ["http://10.1.2.3:9"], ["http://10.2.0.1", "http://8.8.8.8"]),
        ("10.1.0.0/16:80", ["http://10.1.2.3"], ["http://10.1.2.3:81"]),
        ("127.0.0.1:8000, public", ["http://127.0.0.1:8000", "http://8.8.8.8"], ["http://127.0.0.1:8001"]),
        ("[::1]:8000", ["http://[::1]:8000"], ["http://[::1]:8001", "http://127.0.0.1:8000"]),
        ("::1", ["http://[::1]:8000"], ["http://[::2]"]),
    ],
)  # fmt: skip
def test_only_what_is_listed_passes(listed: str, good: list[str], bad: list[str]) -> None:
    assert [passes(EgressPolicy(listed), url) for url in good] == [True] * len(good)
    assert [passes(EgressPolicy(listed), url) for url in bad] == [False] * len(bad)


def test_machines_are_named_or_stand_there_as_addresses() -> None:
    assert passes(EgressPolicy("machine:5000"), "http://machine:5000", looked_up=False)
    assert not passes(EgressPolicy("machine:5000"), "http://machine:5001", looked_up=False)


@pytest.mark.parametrize(
    "listed",
    [
        "http://envs",
        "a b",
        "envs:0",
        "envs:99999",
        "*",
        "10.0.0.0/99",
        "10.0.0.0/8:0",
        "10.0.0.1:99999",
    ],
)
def test_an_entry_that_is_none_is_refused_by_its_option(listed: str) -> None:
    with pytest.raises(ConfigError, match="TRIFORGE_ENV_EGRESS"):
        EgressPolicy(listed)


def test_where_keys_are_asked_for_only_what_is_public_is_reached_unless_more_is_named() -> None:
    keyed = Settings(auth="keys", service_secret=SecretStr("s" * 24))
    private = "http://10.0.0.1"
    assert passes(EgressPolicy.of(Settings()), private)
    assert not passes(EgressPolicy.of(keyed), private)
    assert passes(EgressPolicy.of(keyed.model_copy(update={"env_egress": "10.0.0.1"})), private)
    assert not passes(EgressPolicy.of(Settings(env_egress="public")), private)


def openenv(listed: str) -> OpenEnvFamily:
    return OpenEnvFamily(lambda: EgressPolicy(listed))


def test_a_pool_is_refused_that_names_what_is_out_of_reach() -> None:
    params: Params = {"url": "http://127.0.0.1:8000"}
    with pytest.raises(InputError, match=r"field url: given 127.0.0.1:8000.*TRIFORGE_ENV_EGRESS"):
        openenv("public").validate(params)
    assert openenv("127.0.0.1").validate(params)
    osworld = OsworldFamily(lambda: EgressPolicy("public"))
    named: list[Params] = [{"machines": ["http://vm:5000"]}, {"docker": {"image": "x"}}]
    for options in named:
        with pytest.raises(InputError, match="TRIFORGE_ENV_EGRESS"):
            osworld.make(options)
    assert OsworldFamily(lambda: EgressPolicy("vm")).make({"machines": ["http://vm:5000"]})
    assert OsworldFamily(lambda: EgressPolicy("docker")).make({"docker": {"image": "x"}})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, list[str]]]:
    """A server at every address of this machine that sends on who asks, and notes who did."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path.endswith("/on"):
            raise web.HTTPFound(f"http://127.0.0.1:{port}/schema")
        return web.json_response({"action": {}})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        await web.SockSite(runner, bound).start()
        try:
            yield port, asked
        finally:
            await runner.cleanup()


async def test_what_a_name_stands_for_is_judged_where_it_is_connected_to() -> None:
    """`localhost` is here any name that turns out to be of this machine."""
    async with serving() as (port, asked):
        url = f"http://localhost:{port}/schema"
        for listed in ("public", "public,10.0.0.0/8"):
            async with EgressPolicy(listed).session("8.8.8.8", port, timeout_s=20) as http:
                with pytest.raises(aiohttp.ClientError, match="TRIFORGE_ENV_EGRESS"):
                    await http.get(url)
        assert asked == []
        async with EgressPolicy("127.0.0.1").session("localhost", port, timeout_s=20) as http:
            assert (await http.get(url)).status == 200


async def test_a_redirect_out_of_reach_is_not_followed() -> None:
    async with serving() as (port, asked):
        named = EgressPolicy(f"localhost:{port}")
        url = f"http://localhost:{port}"
        async with named.session("localhost", port, timeout_s=20) as http:
            with pytest.raises(OSError, match="redirects"):
                await http.get(f"{url}/on")
            with pytest.raises(OSError, match="redirects"):
                await http.ws_connect(f"{url}/on")
        with pytest.raises(InputError, match=f"127.0.0.1:{port}"):
            await named.fetch(f"{url}/on", timeout_s=20, largest=100)
        assert set(asked) == {"/on"}
        both = EgressPolicy(f"localhost:{port}, 127.0.0.1")
        assert await both.fetch(f"{url}/on", timeout_s=20, largest=100) == b'{"action": {}}'
        with pytest.raises(EnvError, match="larger than 3 bytes"):
            await both.fetch(f"{url}/x", timeout_s=20, largest=3)


async def test_an_episode_does_not_connect_to_what_its_pool_may_no_longer_name() -> None:
    """The pool is from before the option was turned."""
    async with serving() as (port, asked):
        params: Params = {"url": f"http://127.0.0.1:{port}"}
        task = task_of(openenv("any"), params)
        environment = openenv("public").make({})
        with pytest.raises(InputError, match="TRIFORGE_ENV_EGRESS") as refused:
            await environment.reset(task, seed=0)
        await environment.close()
        assert not refused.value.retryable
        assert asked == []


def test_the_reach_needs_no_loop() -> None:
    with pytest.raises(EnvError):
        asyncio.run(EgressPolicy().fetch("http://127.0.0.1:1/x", timeout_s=20, largest=1))
