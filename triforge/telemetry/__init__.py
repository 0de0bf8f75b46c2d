"""Watching a deployment: log lines that say whom they are about, and traces.

`begin` is called once by every `__main__`, before anything else. What happens inside `about(run=..., group=...)` is about
these; log lines and spans name them, and they travel with requests from service to service. Traces are an option: without the
extra `otel`, or without an address to send them to, nothing of them is loaded and asking costs one comparison.

Knows no room, no web framework and no queue; metrics are in `triforge.metrics`.
"""

from triforge.telemetry.begin import begin, server_options
from triforge.telemetry.ids import about, carried, ids_of, known
from triforge.telemetry.masking import hide, masked

__all__ = ["about", "begin", "carried", "hide", "ids_of", "known", "masked", "server_options"]
