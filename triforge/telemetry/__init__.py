"""Log lines and traces that name their run, group and trajectory. Metrics are in `triforge.metrics`.

Each `__main__` calls `begin` once, before anything else. `about(run=..., group=...)` adds ids to the log lines and spans inside
it; the ids travel with requests from service to service.
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
