"""Log lines, as JSON or text, with the known ids and without secrets. `begin` sets a process up."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from triforge import __version__
from triforge.telemetry import tracing
from triforge.telemetry.ids import known

LEVELS: Final = ("debug", "info", "warning", "error")
ACCESS: Final = "uvicorn.access"
_ACCESS_FIELDS: Final = ("client", "method", "path", "http", "status")
_log = logging.getLogger(__name__)
# Variables of the environment whose values no line may show.
_SECRETS: Final = ("_KEY", "PASSWORD", "SECRET", "_TOKEN")
# Libraries that log every request or job at INFO.
_VERBOSE: Final = (
    "httpx", "httpcore", "aiohttp.access", "celery", "kombu", "alembic", "urllib3", "opentelemetry",
    "uvicorn",
)  # fmt: skip

MASK: Final = "***"
_SHORTEST: Final = 6  # a shorter value would be found inside of harmless words
_LOOKS: Final = (
    (  # with a digit or long: "a basic question" is none
        re.compile(r"(?i)\b(bearer|basic)(\s+)(?=\S*\d|\S{20})[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"), rf"\1{MASK}"),  # a password in an address
    (re.compile(r"\b(tfk_[0-9a-f]{12}_)[A-Za-z0-9_-]+"), rf"\1{MASK}"),  # a key; its id may be seen
    (
        re.compile(
            r"(?i)\b((?:[a-z0-9_-]{0,40}[_-])?(?:api[_-]?key|admin[_-]?api[_-]?key|password|passwd|secret|token))"
            r"(\"?\s*[=:]\s*\"?)(?!\*|\d+\b)[^\s\"',;&]{6,}"
        ),
        rf"\1\2{MASK}",
    ),
)

_hidden: set[str] = set()
_pattern: re.Pattern[str] | None = None


def hide(*values: str) -> None:
    """Mask these values in all later lines; empty and very short ones are ignored."""
    global _pattern
    _hidden.update(value for value in values if len(value) >= _SHORTEST)
    ordered = sorted(_hidden, key=len, reverse=True)  # one may be the beginning of another
    _pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None


def masked(text: str) -> str:
    """Return the text without secrets."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    for look, replacement in _LOOKS:
        text = look.sub(replacement, text)
    return text


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Form(logging.Formatter):
    """A form of log lines, for a service and one of its processes."""

    def __init__(self, service: str, process: str) -> None:
        super().__init__()
        self.service, self.process = service, process


class JsonLines(_Form):
    """One JSON object a line.

    Always there: `time` (UTC), `level`, `service`, `process`, `pid`, `logger`, `message`. Where known: the ids of
    `triforge.telemetry.ids.NAMES`, `trace` and `span`, `error` (a traceback), and for a request `client`, `method`, `path`,
    `status`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "service": self.service,
            "process": self.process,
            "pid": record.process,
            "logger": record.name,
            "message": masked(record.getMessage()),
            **known(),
            **tracing.current_ids(),
        }
        if record.name == ACCESS and isinstance(record.args, tuple) and len(record.args) == 5:
            fields = dict(zip(_ACCESS_FIELDS, record.args, strict=True))
            line |= {k: masked(v) if isinstance(v, str) else v for k, v in fields.items()}
        if record.exc_info:
            line["error"] = masked(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(_Form):
    """`time level service/process logger: message [run=... group=...]`, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end and with control characters escaped, so that no text can forge a line."""
        ids = {**known(), **tracing.current_ids()}
        about = f" [{' '.join(f'{name}={value}' for name, value in ids.items())}]" if ids else ""
        source = f"{self.service}/{self.process}" if self.process else self.service
        line = f"{_time(record)} {record.levelname} {source} {record.name}: {record.getMessage()}{about}"
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return masked(line)


class _Lines(logging.StreamHandler[Any]):
    """The handler of `begin`, so that it is recognised."""


def _configure(formatter: logging.Formatter, level: str) -> None:
    """Let every logger write to standard error, unless a test or a notebook has set up logging before."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _Lines)]
    if len(ours) < len(root.handlers):
        return
    handler = _Lines(sys.stderr)
    handler.setFormatter(formatter)
    for old in ours:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _VERBOSE:
        logging.getLogger(name).setLevel("INFO" if level == "debug" else "WARNING")
    logging.captureWarnings(True)


def begin(
    service: str, process: str = "", *, environ: Mapping[str, str] | None = None, level: str = ""
) -> None:
    """Set up log lines, and traces where a collector is named, of this process, such as `reward`, `judge-worker`.

    Reads `TRIFORGE_LOG` (`text`, `json`), `TRIFORGE_LOG_LEVEL` and `TRIFORGE_OTLP_ENDPOINT` from the environment (`environ`
    in tests) before the settings are read, whose faults are logged; an impossible value is logged and the default used.
    """
    environ = os.environ if environ is None else environ
    form = environ.get("TRIFORGE_LOG") or "text"
    wanted = level or environ.get("TRIFORGE_LOG_LEVEL") or "info"
    rank = os.environ.get("RANK", "")
    name = f"{process}-{rank}" if rank.isdecimal() and rank != "0" else process
    formatter = JsonLines if form == "json" else TextLines
    _configure(formatter(service, name), wanted if wanted in LEVELS else "info")
    hide(*(value for key, value in environ.items() if key.upper().endswith(_SECRETS)))
    if form not in ("text", "json"):
        _log.warning("TRIFORGE_LOG: given %r, expected text or json; text is used", form)
    if wanted not in LEVELS:
        message = "TRIFORGE_LOG_LEVEL: given %r, expected one of %s; info is used"
        _log.warning(message, wanted, ", ".join(LEVELS))
    _log.info("triforge %s starts", __version__)
    tracing.start(service, name, environ)


def server_options() -> dict[str, Any]:
    """Return uvicorn's options, so that its lines have our form; requests are logged at level debug only."""
    debug = logging.getLogger().isEnabledFor(logging.DEBUG)
    return {"log_config": None, "access_log": debug}
