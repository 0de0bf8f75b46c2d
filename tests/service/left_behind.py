"""What a judge worker leaves in Redis that died, or belonged to an older triforge, between storing votes and announcing."""

from __future__ import annotations

from triforge.messages import TrajectoryVotes
from triforge.queues import Wire
from triforge.queues.connection import PAYLOAD_TTL_S


async def leave_votes(wire: Wire, votes: TrajectoryVotes) -> bool:
    """Store a trajectory's votes and announce nothing; False when it had some already."""
    key = f"tf:votes:{votes.group_id}"
    new = await wire._ask("HSETNX", key, votes.trajectory_id, votes.model_dump_json())
    await wire._ask("EXPIRE", key, PAYLOAD_TTL_S)
    return bool(new)
