"""Where groups in flight stand, many at a glance: who is at them, what was begun, what is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triforge.queues.connection import Connection

_AT_ONCE = 500  # groups that one round trip asks about


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Where a group stands.

    Attributes:
        announced: nothing of it is missing.
        played: its trajectories are all there.
        begun: its errands that some worker ever held: the group's own, its trajectories', its tests'.
        held: those that some worker holds now.
        judged: those that have votes or tests.
    """

    announced: bool
    played: bool
    begun: frozenset[str]
    held: frozenset[str]
    judged: frozenset[str]


class Sight(Connection):
    """Looks at groups without touching them."""

    async def see(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[Seen]:
        """Where groups stand.

        An errand that ends while we look is seen as held or as judged, never as neither: leases are read before votes.

        Args:
            groups: a group's id, and the ids of the errands of the judge that belong to it.
        """
        found: list[Seen] = []
        for first in range(0, len(groups), _AT_ONCE):
            found += await self._see(groups[first : first + _AT_ONCE])
        return found

    async def _see(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[Seen]:
        pipe = self._redis.pipeline(transaction=False)
        for group_id, parts in groups:
            errands = (group_id, *parts)
            pipe.mget([f"tf:started:{name}" for name in errands])
            pipe.mget([f"tf:lease:{name}" for name in errands])
            pipe.hkeys(f"tf:votes:{group_id}")
            pipe.exists(f"tf:group:{group_id}")
            pipe.exists(f"tf:announced:{group_id}")
        replies = await self._call(pipe.execute())
        found = []
        for place, (group_id, parts) in enumerate(groups):
            begun, held, judged, played, announced = replies[5 * place : 5 * place + 5]
            names = (group_id, *parts)
            found.append(
                Seen(
                    announced=bool(announced),
                    played=bool(played),
                    begun=frozenset(n for n, mark in zip(names, begun, strict=True) if mark),
                    held=frozenset(n for n, token in zip(names, held, strict=True) if token),
                    judged=frozenset(judged),
                )
            )
        return found
