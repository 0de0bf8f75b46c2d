"""What every section is made of."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Tokens = Annotated[int, Field(ge=1, le=131072)]


def _address(url: str) -> str:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        good = False
    if not good:
        raise ValueError("expected http://host:port or https://host:port")
    return url.rstrip("/")


Url = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown fields refused, every number finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
