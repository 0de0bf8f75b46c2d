"""Keys of sessions: `tfs_<session>_<secret>`. They open one session and nothing else."""

from __future__ import annotations

import re
import secrets
from typing import Final

from triforge.access.keys import digest

_FORM: Final = re.compile(r"tfs_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


def new_key(session_id: str) -> tuple[str, str]:
    """A key of a session, and what is kept of it."""
    secret = secrets.token_urlsafe(32)
    return f"tfs_{session_id}_{secret}", digest(secret)


def split(text: str) -> tuple[str, str] | None:
    """(session, secret) of a key as agents hold it, or None if it is none."""
    found = _FORM.fullmatch(text.strip())
    return (found[1], found[2]) if found else None


def key_of(authorization: str, x_api_key: str = "") -> str:
    """The key in the headers of a request: clients of OpenAI send a bearer, those of Anthropic `x-api-key`."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else x_api_key.strip()
