"""The HTML templates and the filters that they use."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).with_name("html")
_ROUNDING = 1e-12  # a smaller number is shown as 0


def templates(*folders: Path) -> Environment:
    """Return the templates of these folders and of the dashboard, with their filters."""
    environment = Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,  # names, instructions and outputs of models are text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"when": _when, "number": _number, "share": _share, "signed": _signed}
    environment.filters |= filters | {"duration": _duration}
    return environment


def page(name: str, **values: Any) -> str:
    """Fill the template of a page."""
    return _OWN.get_template(f"{name}.html").render(**values)


def _when(seconds: float) -> str:
    """Format a time of the APIs, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) < _ROUNDING:
        return "0"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _signed(value: float) -> str:
    """Format a number whose sign can be read without its colour."""
    return "0" if abs(value) < _ROUNDING else f"{value:+.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _duration(seconds: float) -> str:
    """Format a time that something took, in the unit that a reader counts in."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s"


_OWN: Final = templates()
