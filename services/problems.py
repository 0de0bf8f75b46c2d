"""Names of `services.doors` for rooms that have not moved to it yet."""

from services.doors.furniture import install
from services.doors.limits import MAX_BODY

__all__ = ["MAX_BODY", "install"]
