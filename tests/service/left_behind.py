"""What a judge worker leaves in Redis that died, or belonged to an older triforge, between storing votes and announcing."""

from __future__ import annotations

from triforge.broker import Broker
from triforge.broker.connection import PAYLOAD_TTL_S
from triforge.types import TrajectoryVotes


async def leave_votes(broker: Broker, votes: TrajectoryVotes) -> bool:
    """Store a trajectory's votes and announce nothing; False when it had some already."""
    key = f"tf:votes:{votes.group_id}"
    new = await broker._ask("HSETNX", key, votes.trajectory_id, votes.model_dump_json())
    await broker._ask("EXPIRE", key, PAYLOAD_TTL_S)
    return bool(new)
