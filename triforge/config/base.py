"""The base of all sections, and the closed vocabularies that sections and messages share."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from triforge.algorithms.registry import Only
from triforge.errors import InputError
from triforge.json_text import loads, require_keepable

# The name of a model of a run: `policy`, `reward`, `rewriter`, or one that the run's document adds.
ROLE_NAME: Final = r"^[a-z][a-z0-9]{0,15}$"
Role = Annotated[str, Field(pattern=ROLE_NAME)]
TrainedRole = Role
Purpose = Literal["train", "measure_parent", "measure_candidate", "method", "evaluate"]
Direction = Literal["harder", "easier"]
# active: played · pending: a candidate in measurement · awaiting: a measured candidate that waits for a person ·
# rejected: a candidate that was not accepted · replaced: its rewrite is played instead · rolled_back: a rewrite that a
# person undid · paused: not played for now · retired: never played again
TaskState = Literal[
    "active", "pending", "awaiting", "rejected", "replaced", "rolled_back", "paused", "retired"
]
ProposalState = Literal["pending", "awaiting", "accepted", "rejected", "invalid", "rolled_back"]
PoolStatus = Literal["active", "paused", "retired"]
Approval = Literal["automatic", "manual"]
Split = Literal["train", "heldout"]
Params = dict[str, JsonValue]

Positive = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Tokens = Annotated[int, Field(ge=1, le=131072)]
Cards = tuple[Annotated[int, Field(ge=0, le=999)], ...]


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
NOWHERE: Final = "none"  # the address of a service that a deployment does not have
OptionalUrl = Annotated[str, AfterValidator(lambda url: url if url == NOWHERE else _address(url))]


def by_name(text: str) -> dict[str, str]:
    """Return addresses by model from `name=http://host:port,...`; several of one model are joined by commas."""
    addresses: dict[str, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, address = item.partition("=")
        if not re.fullmatch(ROLE_NAME, name) or "://" not in address:
            raise ValueError(f"given {item!r}, expected name=http://host:port, separated by commas")
        addresses[name] = ",".join(filter(None, (addresses.get(name), address)))
    return addresses


def _checked_names(text: str) -> str:
    by_name(text)
    return text


ByName = Annotated[str, AfterValidator(_checked_names)]


# An atom, the bound of a group, or the count of a repetition.
_PART = re.compile(
    r"\\[pPxu]\{[^}]{0,40}\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|\((?:\?[^:=!<)]{0,8}[:=!])?|\{(\d*),?(\d*)\}|.",
    re.DOTALL,
)
_BORDERS: Final = (r"\b", r"\B", r"\<", r"\>")
_LONGEST: Final = 65_536  # characters of an expression
_LARGEST: Final = 1 << 20  # characters of a JSON schema
_POSITIONS: Final = (
    10_000  # of an expression with its repetitions written out, as engines compile it
)


def _small(pattern: str) -> str:
    if len(pattern) > _LONGEST:
        raise ValueError(f"given {len(pattern)} characters, expected at most {_LONGEST}")
    size = positions(pattern)
    if size > max(_POSITIONS, len(pattern)):
        raise ValueError(
            f"with its repetitions written out it has {size} positions, expected at most {_POSITIONS}; lower the numbers in {{}}"
        )
    if reason := _parse_error(pattern):
        raise ValueError(f"given {pattern!r:.80}, expected a regular expression: {reason}")
    return pattern


@functools.lru_cache(maxsize=256)
def _parse_error(pattern: str) -> str:
    """Return why a pattern is none for llguidance, or nothing: it shares its parser with pydantic, and takes no borders of words."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        _, found, reason = str(error).rpartition("error: ")
        return reason.strip() if found and "parse error" in str(error) else ""
    border = next((part[0] for part in _PART.finditer(pattern) if part[0] in _BORDERS), "")
    return border and f"{border} looks at what stands around, which engines do not"


def positions(pattern: str) -> int:
    """Return the positions of a regular expression whose counted repetitions, `a{1000}`, are written out."""
    whole = [0]  # of each open group
    last = 0
    for part in _PART.finditer(pattern):
        text = part[0]
        if part[1] or part[2]:
            times = max(int(part[1] or 1), int(part[2] or 1))
            whole[-1] += last * (times - 1)
            last *= times
        elif text[0] == "(":
            whole.append(0)
        elif text == ")" and len(whole) > 1:
            last = whole.pop()
            whole[-1] += last
        elif text not in "*+?|":
            last = 1
            whole[-1] += 1
    return sum(whole)


Regex = Annotated[str, AfterValidator(_small)]


def _schema(text: str) -> str:
    if len(text) > _LARGEST:
        raise ValueError(f"given {len(text)} characters, expected at most {_LARGEST}")
    value = loads(text)
    if not isinstance(value, (dict, bool)):
        raise ValueError(f"given {text!r:.80}, expected a JSON schema, an object")
    try:
        require_keepable(value, "the schema")
    except InputError as error:
        raise ValueError(error.detail) from None
    return text


JsonSchema = Annotated[str, AfterValidator(_schema)]


Conflicts = Iterator[tuple[bool, str]]
"""Whether each impossible combination is given, and the sentence that refuses it."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown fields, finite numbers; a field that no chosen part reads must keep its default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="after")
    def _is_read(self) -> Self:
        for name, field in type(self).model_fields.items():
            for only in field.metadata:
                value = getattr(self, name)
                if isinstance(only, Only) and value != field.default and not only.read(self):
                    raise ValueError(f"{name}: given {value!r}, allowed only with {only.needs}")
        return self

    def conflicts(self, config: Any) -> Conflicts:  # noqa: ARG002
        """Yield the combinations with other sections that are impossible.

        Args:
            config: the `RunConfig` that the section belongs to.
        """
        yield from ()


class Sampling(Section):
    """Options of sampling. Produced by: orchestrator (from the config). Consumed by: engines.

    `temperature` 0 is greedy. `stop` are strings, cut off from the text but kept in the ids. `stop_token_ids` end an answer
    in addition to the model's own end-of-text tokens.
    """

    max_new_tokens: Tokens = 128
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(fail_fast=True)] = ()
    seed: int | None = None
    regex: Regex | None = None
    json_schema: JsonSchema | None = None
