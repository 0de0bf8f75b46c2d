"""Log lines and traces that name the run, group and trajectory they are about.

Every `__main__` calls `begin` once, before anything else. `about(run=..., group=...)` adds ids to log lines and spans inside
it; they travel with requests from service to service. Metrics are in `triforge.metrics`.
"""

from triforge.telemetry.ids import about, carried, ids_of, known, stamp
from triforge.telemetry.logs import begin, hide, masked, server_options

__all__ = [
    "about",
    "begin",
    "carried",
    "hide",
    "ids_of",
    "known",
    "masked",
    "server_options",
    "stamp",
]
