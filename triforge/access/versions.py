"""Clients and services of different versions.

Messages refuse unknown fields, so a newer client would meet sentences about fields that nobody can explain. It is told
what is the matter instead. An older client is served: a service knows what was before it.
"""

from __future__ import annotations

import re
from typing import Final

from triforge import __version__
from triforge.errors import VersionError

HEADER: Final = "Triforge-Version"
_FORM: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(\.[0-9A-Za-z.+-]{1,40})?")


def demand_not_newer(given: str, here: str = __version__) -> None:
    """Pass a client that is as old as this service or older; patch releases do not count, nor does what is no version.

    Raises:
        VersionError: the client is newer.
    """
    theirs, ours = _FORM.fullmatch(given), _FORM.fullmatch(here)
    if theirs and ours and _number(theirs) > _number(ours):
        raise VersionError(
            f"the client is triforge {given}, this service is {here}: upgrade the service, or use a client of "
            f"{ours[1]}.{ours[2]}"
        )


def _number(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1]), int(found[2])
