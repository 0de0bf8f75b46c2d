"""Where groups in flight stand, many at a glance: who is at them, what was begun, what is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triforge.broker.connection import Connection

_AT_ONCE = 500  # groups that one round trip asks about


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Where a group stands.

    Attributes:
        played: its trajectories are all there.
        begun: its jobs that some worker ever held: the group's own, its trajectories', its tests'.
        held: those that some worker holds now.
        judged: those that have votes or tests; only looked at where one was begun that nobody holds.
    """

    played: bool
    begun: frozenset[str]
    held: frozenset[str]
    judged: frozenset[str]


class Sight(Connection):
    """Looks at groups without touching them."""

    async def announced(self, group_ids: Sequence[str]) -> set[str]:
        """Those of which nothing is missing."""
        found: set[str] = set()
        for first in range(0, len(group_ids), _AT_ONCE):
            names = group_ids[first : first + _AT_ONCE]
            marks = await self._call(self._redis.mget([f"tf:announced:{name}" for name in names]))
            found |= {name for name, mark in zip(names, marks, strict=True) if mark}
        return found

    async def see(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[Seen]:
        """Where groups stand.

        A job that ends while we look is seen as held or as judged, never as neither: leases are read before votes.

        Args:
            groups: a group's id, and the ids of the jobs of the judge that belong to it.
        """
        found: list[Seen] = []
        for first in range(0, len(groups), _AT_ONCE):
            found += await self._see(groups[first : first + _AT_ONCE])
        return found

    async def _see(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[Seen]:
        pipe = self._redis.pipeline(transaction=False)
        for group_id, parts in groups:
            jobs = (group_id, *parts)
            marks = [f"tf:started:{name}" for name in jobs]
            pipe.mget([*marks, *(f"tf:lease:{name}" for name in jobs)])
            pipe.exists(f"tf:group:{group_id}")
        replies = await self._call(pipe.execute())
        marked = []
        for (group_id, parts), marks in zip(groups, replies[::2], strict=True):
            names = (group_id, *parts)
            begun = {n for n, mark in zip(names, marks[: len(names)], strict=True) if mark}
            held = {n for n, token in zip(names, marks[len(names) :], strict=True) if token}
            marked.append((group_id, frozenset(begun), frozenset(held)))
        judged = await self._judged([g for g, begun, held in marked if begun - held - {g}])
        return [
            Seen(
                played=bool(played), begun=begun, held=held, judged=judged.get(group_id, frozenset())
            )
            for (group_id, begun, held), played in zip(marked, replies[1::2], strict=True)
        ]  # fmt: skip

    async def _judged(self, group_ids: Sequence[str]) -> dict[str, frozenset[str]]:
        if not group_ids:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for group_id in group_ids:
            pipe.hkeys(f"tf:votes:{group_id}")
        replies = await self._call(pipe.execute())
        return {g: frozenset(names) for g, names in zip(group_ids, replies, strict=True)}
