"""Who waits for a free place: in order, and no more than may."""

from __future__ import annotations

import asyncio

import pytest

from services.policy.waiting import WaitingService
from triforge.errors import BusyError


class Places:
    """So many free places, handed out by name."""

    def __init__(self, line: WaitingService) -> None:
        self.line = line
        self.free = 0
        self.served: list[str] = []

    async def visit(self, name: str, weight: int = 1) -> None:
        def take() -> str | None:
            if self.free < weight:
                return None
            self.free -= weight
            return name

        self.served.append(await self.line.wait(take, weight, 2.5))

    def open(self, places: int) -> None:
        self.free += places
        self.line.wake()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def service(limit: int = 100, longest_s: float = 60.0) -> Places:
    return Places(WaitingService(limit=limit, longest_s=longest_s))


async def test_who_came_first_is_served_first_also_if_it_wants_more() -> None:
    places = service()
    visits = [asyncio.create_task(places.visit(name, w)) for name, w in (("a", 1), ("b", 3), ("c", 1))]  # fmt: skip
    await settle()
    assert places.line.waiting == 5
    places.open(2)
    await settle()
    assert places.served == ["a"]  # c would fit, but b is first
    places.open(3)
    await settle()
    assert places.served == ["a", "b", "c"]
    await asyncio.gather(*visits)
    assert (places.line.waiting, bool(places.line)) == (0, False)


async def test_one_more_than_may_is_turned_away_and_told_when_to_come_back() -> None:
    places = service(limit=2)
    visits = [asyncio.create_task(places.visit(name)) for name in "ab"]
    await settle()
    with pytest.raises(BusyError, match=r"2 samples wait.*TRIFORGE_MAX_WAITING=2") as caught:
        await places.visit("c")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 2.5)
    assert places.line.turned_away == 1
    places.open(2)
    await asyncio.gather(*visits)
    assert places.served == ["a", "b"]


async def test_a_request_larger_than_the_line_may_stand_in_it_alone() -> None:
    places = service(limit=2)
    visit = asyncio.create_task(places.visit("a", 5))
    await settle()
    places.open(5)
    await visit
    assert places.served == ["a"]


async def test_who_gives_up_leaves_its_place_to_the_next() -> None:
    places = service()
    visits = [asyncio.create_task(places.visit(name)) for name in "abc"]
    await settle()
    visits[0].cancel()
    places.open(1)  # wakes a, which is about to leave
    await settle()
    assert places.served == ["b"]
    visits[2].cancel()
    await asyncio.wait(visits)
    assert places.line.waiting == 0


async def test_a_wait_that_is_too_long_ends_as_busy() -> None:
    places = service(longest_s=0.0)
    with pytest.raises(BusyError, match="TRIFORGE_QUEUE_S"):
        await places.visit("a")
    assert not places.line
