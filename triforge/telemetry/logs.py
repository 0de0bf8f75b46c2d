"""How a log line looks: JSON for machines, text for people. Both name the service, the process and the ids that are known."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

from triforge.telemetry import tracing
from triforge.telemetry.ids import known
from triforge.telemetry.masking import masked

Form = Literal["json", "text"]
LEVELS: Final = ("debug", "info", "warning", "error")
ACCESS: Final = "uvicorn.access"
_ACCESS_FIELDS: Final = ("client", "method", "path", "http", "status")
# Libraries that say at INFO what they do for every request or job.
_CHATTY: Final = (
    "httpx",
    "httpcore",
    "aiohttp.access",
    "celery",
    "kombu",
    "alembic",
    "urllib3",
    "opentelemetry",
)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(text: str) -> str:
    """One line, without control characters: nobody can write a line of another's into a log."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JsonLines(logging.Formatter):
    """One JSON object a line.

    Always there: `time` (UTC), `level`, `service`, `process`, `pid`, `logger`, `message`. Where known: the ids of
    `triforge.telemetry.ids.NAMES`, `trace` and `span`, `error` (a traceback), and for a request `client`, `method`, `path`,
    `status`.

    Args:
        service: which service the process is of.
        process: what it does there.
    """

    def __init__(self, service: str, process: str) -> None:
        super().__init__()
        self._service, self._process = service, process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        line |= known()
        line |= tracing.current_ids()
        if record.name == ACCESS and isinstance(record.args, tuple) and len(record.args) == 5:
            fields = dict(zip(_ACCESS_FIELDS, record.args, strict=True))
            line |= {k: masked(v) if isinstance(v, str) else v for k, v in fields.items()}
        if record.exc_info:
            line["error"] = masked(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """`time level service/process logger: message [run=... group=...]`, a traceback below it. Arguments: see `JsonLines`."""

    def __init__(self, service: str, process: str) -> None:
        super().__init__()
        self._from = f"{service}/{process}" if process else service

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        ids = {**known(), **tracing.current_ids()}
        about = (
            " [" + " ".join(f"{name}={value}" for name, value in ids.items()) + "]" if ids else ""
        )
        said = f"{_time(record)} {record.levelname} {self._from} {record.name}: {record.getMessage()}{about}"
        text = _plain(said)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return masked(text)


class _Lines(logging.StreamHandler[Any]):
    """Our handler, so that it is known again."""


def configure(service: str, process: str, *, form: Form, level: str) -> None:
    """Have every logger of this process write such lines to standard error, at `level` and above.

    Libraries keep quiet below WARNING unless the level is `debug`. uvicorn must be started with
    `triforge.telemetry.server_options()`, or it lays its own form over this one. Where somebody else has set up logging
    before (a test, a notebook), theirs stays.
    """
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _Lines)]
    if len(ours) < len(root.handlers):
        return
    handler = _Lines(sys.stderr)
    handler.setFormatter((JsonLines if form == "json" else TextLines)(service, process))
    for old in ours:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel("INFO" if level == "debug" else "WARNING")
    logging.getLogger("uvicorn").setLevel("INFO" if level == "debug" else "WARNING")
    logging.captureWarnings(True)


def name_of(process: str) -> str:
    """The process's name, with its rank where several of one launch share it."""
    rank = os.environ.get("RANK", "")
    return f"{process}-{rank}" if rank.isdecimal() and rank != "0" else process
