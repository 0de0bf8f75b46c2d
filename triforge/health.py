"""`python -m triforge.health URL`: exit status 0 if it answers 200. For health checks of containers, which have no curl.

It imports little: a stack calls it dozens of times a minute, and imports would be most of the cost.
"""

from __future__ import annotations

import sys
from http.client import HTTPConnection, HTTPException

_TIMEOUT_S = 5.0


def main(arguments: list[str]) -> int:
    """Send a request; return the exit status and write problems to standard error."""
    url = arguments[0] if len(arguments) == 1 else ""
    scheme, _, rest = url.partition("://")
    address, _, path = rest.partition("/")
    if scheme != "http" or not address:
        sys.stderr.write(f"given {arguments}, expected one http:// URL\n")
        return 2
    connection = HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/{path}")
        response = connection.getresponse()
        if response.status == 200:
            return 0
        sys.stderr.write(
            f"{url}: {response.status} {response.read(500).decode(errors='replace')}\n"
        )
    except (OSError, HTTPException, ValueError) as error:
        sys.stderr.write(f"{url}: {error}\n")
    finally:
        connection.close()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
