"""The one place where a process is made watchable."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from triforge import __version__
from triforge.telemetry import logs, masking, tracing

_log = logging.getLogger(__name__)
# What the environment may hold that no line should show.
_SECRETS = ("_KEY", "PASSWORD", "SECRET", "_TOKEN")


def begin(
    service: str, process: str = "", *, environ: Mapping[str, str] | None = None, level: str = ""
) -> None:
    """Set up the log lines of this process and, where an address for them is given, its traces.

    Reads `TRIFORGE_LOG` (`text`, `json`), `TRIFORGE_LOG_LEVEL` and `TRIFORGE_OTLP_ENDPOINT` from the environment: it comes
    before the settings, whose faults are to be logged. What they must be is checked there; here an impossible value is said
    and the default taken.

    Args:
        service: which service the process is of.
        process: what it does there, such as `api` or `judge-worker`.
        environ: variables; None takes the process's own.
        level: of the lines, where the process has an option of its own for it.
    """
    given = os.environ if environ is None else environ
    form, wanted = (
        given.get("TRIFORGE_LOG") or "text",
        level or given.get("TRIFORGE_LOG_LEVEL") or "info",
    )
    known_form, known_level = form in ("text", "json"), wanted in logs.LEVELS
    name = logs.name_of(process)
    logs.configure(
        service,
        name,
        form="json" if form == "json" else "text",
        level=wanted if known_level else "info",
    )
    masking.hide(*(v for k, v in given.items() if k.upper().endswith(_SECRETS)))
    if not known_form:
        _log.warning("TRIFORGE_LOG: given %r, expected text or json; text is taken", form)
    if not known_level:
        expected = ", ".join(logs.LEVELS)
        _log.warning(
            "TRIFORGE_LOG_LEVEL: given %r, expected one of %s; info is taken", wanted, expected
        )
    _log.info("triforge %s starts", __version__)
    tracing.start(service, name, given)


def server_options() -> dict[str, Any]:
    """What uvicorn is to be started with, so that its lines are ours. Requests are logged at level debug only."""
    debug = logging.getLogger().isEnabledFor(logging.DEBUG)
    return {"log_config": None, "access_log": debug}
