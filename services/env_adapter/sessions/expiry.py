"""The end of a session whose time is over: its calls are refused first, so that what was answered before is kept."""

from __future__ import annotations

import asyncio

from services.env_adapter.sessions.store import EXPIRED, SessionStore
from triforge.broker.sessions import SessionLog
from triforge.types import SessionState


async def expire(store: SessionStore, log: SessionLog, session_id: str) -> SessionState:
    """End a session with all that its agent was answered."""
    await log.close(session_id, EXPIRED)
    return await asyncio.to_thread(store.expire, session_id, await log.all(session_id))


async def current(store: SessionStore, log: SessionLog, session_id: str, key: str) -> SessionState:
    """Return a session to its own key, or to a caller that sees its tenant; end it if its time is over."""
    state, late = await asyncio.to_thread(store.get, session_id, key)
    return await expire(store, log, session_id) if late else state
