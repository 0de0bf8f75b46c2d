"""Processes that outlive who has started them are found, named and ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from chaos.owner import until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _gone(left: dict[str, int], *, within_s: float) -> list[str]:
    return asyncio.run(until_gone(left, within_s=within_s))


def test_what_stays_is_named_and_ended_and_what_has_ended_is_neither() -> None:
    stays = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert _gone({"stays": stays.pid, "ended": ended.pid}, within_s=0.1) == ["stays"]
    assert stays.wait(10) == -9
    assert stays.stdin
    stays.stdin.close()


def test_a_zombie_is_gone() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    assert _gone({"dead": dead.pid}, within_s=30.0) == []
    assert dead.wait(10) == 0
