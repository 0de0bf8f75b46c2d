"""The payloads of groups in flight, typed. First writer wins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final, TypeVar

from triforge.broker.connection import PAYLOAD_TTL_S, STREAM_LENGTH, Connection
from triforge.broker.names import JUDGED_STREAM
from triforge.broker.scripts import FINISH, PUT_GROUP
from triforge.types import (
    GroupTests,
    JudgedGroup,
    Message,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
)

_M = TypeVar("_M", bound=Message)
_NOTHING: Final = ("", "")


class Groups(Connection):
    """Trajectories, groups and votes by their ids, and the announcement of groups that are complete."""

    async def _put_once(self, key: str, message: Message) -> bool:
        text = message.model_dump_json()
        return bool(await self._ask("SET", key, text, "NX", "EX", PAYLOAD_TTL_S))

    async def _get(self, key: str, kind: type[_M]) -> _M | None:
        text = await self._ask("GET", key)
        return None if text is None else kind.model_validate_json(text)

    async def put_trajectory(self, trajectory: Trajectory) -> bool:
        """Store a finished trajectory for the judge; False when it was there already."""
        return await self._put_once(f"tf:trajectory:{trajectory.id}", trajectory)

    async def trajectory(self, trajectory_id: str) -> Trajectory | None:
        """A finished trajectory, or None."""
        return await self._get(f"tf:trajectory:{trajectory_id}", Trajectory)

    async def trajectories(self, trajectory_ids: Sequence[str]) -> list[Trajectory | None]:
        """Finished trajectories, None for those that are not there."""
        texts = await self._ask("MGET", *(f"tf:trajectory:{t}" for t in trajectory_ids))
        return [None if text is None else Trajectory.model_validate_json(text) for text in texts]

    async def put_group(self, group: TrajectoryGroup) -> bool:
        """Store a played group; False when it was there already (the first writer's stays)."""
        name = group.group.group_id
        keys = (f"tf:group:{name}", f"tf:wanted:{name}")
        wanted = _wanted(group)
        arguments = (group.model_dump_json(), wanted, PAYLOAD_TTL_S)
        return bool(await self._script(PUT_GROUP, keys, *arguments))

    async def group(self, group_id: str) -> TrajectoryGroup | None:
        """A played group, or None."""
        return await self._get(f"tf:group:{group_id}", TrajectoryGroup)

    async def put_tests(self, tests: GroupTests) -> bool:
        """Store the tests of a group; False when it had some already."""
        key, name = f"tf:votes:{tests.group_id}", unit_tests_id(tests.group_id)
        new = await self._call(self._redis.hsetnx(key, name, tests.model_dump_json()))
        await self._call(self._redis.expire(key, PAYLOAD_TTL_S))
        return bool(new)

    async def forget_votes(self, group_id: str, judged_ids: tuple[str, ...]) -> None:
        """Delete the votes on some of a group's trajectories, or its tests: they are to be judged again."""
        await self._call(self._redis.hdel(f"tf:votes:{group_id}", *judged_ids))
        await self._call(self._redis.delete(f"tf:announced:{group_id}"))

    async def voted(self, group_id: str) -> set[str]:
        """Ids of the group's trajectories that have votes, and `unit_tests_id` if it has tests."""
        return set(await self._ask("HKEYS", f"tf:votes:{group_id}"))

    async def judged_group(self, group_id: str) -> JudgedGroup | None:
        """The group with its votes or tests if all that were asked for are there, else None."""
        text, texts = await asyncio.gather(
            self._ask("GET", f"tf:group:{group_id}"), self._ask("HGETALL", f"tf:votes:{group_id}")
        )
        if text is None:
            return None
        played = TrajectoryGroup.model_validate_json(text)
        wanted = unjudged(played, set(texts))
        if wanted:
            return None
        votes = tuple(
            TrajectoryVotes.model_validate_json(texts[t.id]) if t.id in texts else None
            for t in played.trajectories
        )
        written = texts.get(unit_tests_id(group_id))
        tests = None if written is None else GroupTests.model_validate_json(written)
        return JudgedGroup(played=played, votes=votes, tests=tests)

    async def announce_if_complete(self, group_id: str) -> bool:
        """Announce the group on the stream `judged`, once, if nothing of it is missing.

        Called by whoever wrote last; two may think they were last, and one of them may have died in between, so the
        check repeats on every delivery and the marker makes the announcement single.
        """
        return await self._finish(group_id)

    async def _finish(
        self,
        group_id: str,
        *,
        lease: tuple[str, str] = _NOTHING,
        votes: tuple[str, str] = _NOTHING,
    ) -> bool:
        keys = (
            f"tf:votes:{group_id}", f"tf:wanted:{group_id}", f"tf:announced:{group_id}", f"tf:group:{group_id}", lease[0],
            JUDGED_STREAM,
        )  # fmt: skip
        arguments = (*votes, PAYLOAD_TTL_S, lease[1], STREAM_LENGTH, group_id)
        said = await self._script(FINISH, keys, *arguments)
        if said == "unknown":  # an older triforge has played it
            played = await self.group(group_id)
            if played is not None:
                told = self._redis.set(keys[1], _wanted(played), nx=True, ex=PAYLOAD_TTL_S)
                await self._call(told)
                return await self._finish(group_id)
        return bool(said == "announced")

    async def is_played(self, group_id: str) -> bool:
        """Whether the group's trajectories are all there (votes may be missing)."""
        return bool(await self._ask("EXISTS", f"tf:group:{group_id}"))

    async def forget_group(self, group_id: str, trajectory_ids: tuple[str, ...]) -> None:
        """Delete a group's payloads; it may be played again."""
        keys = [f"tf:{kind}:{group_id}" for kind in ("group", "wanted", "votes", "announced")]
        keys += [f"tf:trajectory:{name}" for name in trajectory_ids]
        keys += [
            f"tf:started:{name}" for name in (group_id, unit_tests_id(group_id), *trajectory_ids)
        ]
        await self._ask("DEL", *keys)

    async def settle_group(self, group_id: str, trajectory_ids: tuple[str, ...]) -> None:
        """Forget a group whose step is committed, for good: a job that is delivered late is dropped."""
        await self._ask("SET", f"tf:settled:{group_id}", "1", "EX", PAYLOAD_TTL_S)
        await self.forget_group(group_id, trajectory_ids)


def unit_tests_id(group_id: str) -> str:
    """What the job for a group's tests, its lease and its result are called."""
    return f"{group_id}-tests"


def unjudged(played: TrajectoryGroup, voted: set[str]) -> tuple[str, ...]:
    """What still waits for the judge, when the group asked for one at all.

    Ids of measured trajectories that wait for votes, or `unit_tests_id` if programs were measured that wait for tests.
    """
    if played.group.votes == 0:
        return ()
    if played.group.reward_kind == "unit_tests":
        name = unit_tests_id(played.group.group_id)
        wanted = played.programs is not None and any(t.measured for t in played.trajectories)
        return (name,) if wanted and name not in voted else ()
    return tuple(t.id for t in played.trajectories if t.measured and t.id not in voted)


def _wanted(played: TrajectoryGroup) -> str:
    """What is kept beside a group, so that nobody has to read all of it to see whether it is complete."""
    return json.dumps({"run_id": played.group.run_id, "names": unjudged(played, set())})
