"""Write the generated pages: docs/reference/ (not committed) and the table of docs/environments.md; `--check` only checks the table.

    python -m scripts.gen_docs [--check]

Messages and configuration come from their docstrings and JSON schemas, examples from tests/contract/types.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from scripts.gen_interfaces import cli_page, rest_page, row
from triforge import methods
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import ESTIMATORS
from triforge.algorithms.judge_targets import JUDGE_TARGETS
from triforge.algorithms.losses import LOSSES
from triforge.algorithms.presets import preset_names, preset_of
from triforge.algorithms.registry import Only
from triforge.config import RunConfig, Section, Settings
from triforge.config.methods import MethodsSection, options_of
from triforge.config.models import FurtherSection, ModelsSection
from triforge.environments.registry import About, about, known, load
from triforge.types import Message

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
EXAMPLES: Final = ROOT / "tests" / "contract" / "types"
ENVIRONMENTS: Final = ROOT / "docs" / "environments.md"
_LONG: Final = 60  # lines; a longer example is only linked
_MARKS: Final = (
    "<!-- families: written by scripts/gen_docs.py, run `make docs` -->",
    "<!-- /families -->",
)
# From the pool to what people see: every module of `triforge.types`, and the bodies of requests by people.
_MODULES: Final = {
    "services.env_adapter.pools.changes": "Changes by people",
    "services.env_adapter.sessions.store": "Requests of agents",
    "triforge.types.env_adapter": "Pools and adaptation",
    "triforge.types.rollout": "Rollouts and votes",
    "triforge.types.policy": "Text and tokens",
    "triforge.types.sessions": "Sessions",
    "triforge.types.learner": "Training and weights",
    "triforge.types.people": "Runs and events",
    "services.reward.requests": "Judgements",
    "triforge.types.base": "Everywhere",
}


# ---- fields as tables ----


def type_of(schema: dict[str, Any]) -> str:
    """Return a fragment of a JSON schema in words; other types as links."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return "any JSON" if name == "JsonValue" else f"`{name}`"
    if "anyOf" in schema:
        return " or ".join(type_of(option) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    kind = schema.get("type")
    if kind == "array":
        return _list_of(schema)
    if kind == "object":
        values = schema.get("additionalProperties")
        inner = type_of(values) if isinstance(values, dict) else "any JSON"
        return "object" if inner == "any JSON" else f"object of {inner}"
    return " ".join([str(kind or "any JSON"), *_limits(schema)])


def _list_of(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return "[" + ", ".join(type_of(item) for item in schema["prefixItems"]) + "]"
    low, high = schema.get("minItems"), schema.get("maxItems")
    limits = f" ({low or 0} to {high} entries)" if high else ""
    return f"list of {type_of(schema.get('items', {}))}{limits}"


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        yield f"{low:.12g} to {high:.12g}"
        low = high = None
    for sign, limit in (("≥", low), (">", above), ("≤", high), ("<", below)):
        if limit is not None:
            yield f"{sign} {limit:.12g}"
    if schema.get("minLength"):
        yield "not empty"
    if "pattern" in schema:
        yield f"`{schema['pattern']}`"


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        changed = value.model_dump(exclude_defaults=True)
        return f"{type(value).__name__}({', '.join(f'{k}={v}' for k, v in changed.items())})"
    return '""' if isinstance(value, SecretStr) else json.dumps(value, ensure_ascii=False)


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    return [row(*head), "|" + "---|" * len(head), *(row(*cells) for cells in rows), ""]


def fields(kind: type[BaseModel], values: BaseModel | None = None, prefix: str = "") -> list[str]:
    """Return the table of a model's fields; `values` hold defaults that differ from the model's own."""
    schema = kind.model_json_schema()["properties"]

    def rows() -> Iterator[tuple[str, ...]]:
        for name, field in kind.model_fields.items():
            if values is None and field.is_required():
                default = "required"
            else:
                own = field.get_default(call_default_factory=True) if values is None else getattr(values, name)  # fmt: skip
                if isinstance(own, Section):  # has a heading of its own
                    continue
                default = f"`{_value(own)}`"
            needs = [f"Read only with {one.needs}." for one in field.metadata if isinstance(one, Only)]  # fmt: skip
            shown = prefix + name.upper() if prefix else name
            yield f"`{shown}`", type_of(schema[name]), default, " ".join([field.description or "", *needs])  # fmt: skip

    return table(("field", "type", "default", "what it does"), rows())


def _docstring(kind: type) -> list[str]:
    return [inspect.cleandoc(kind.__doc__ or ""), ""]


# ---- pages ----


def models_of(module: str) -> list[type[Message]]:
    """Return the messages that a module defines, in their order; not the private bases of others."""
    items = vars(import_module(module)).items()
    found = [one for name, one in items if isinstance(one, type) and not name.startswith("_")]
    return [one for one in found if issubclass(one, Message) and one.__module__ == module]


def messages_page() -> str:
    """Return the page of all messages that cross a process border."""
    lines = ["# Messages", ""]
    for module, title in _MODULES.items():
        lines += [f"## {title}", ""]
        for model in models_of(module):
            path = EXAMPLES / f"{model.__name__}.json"
            example = path.read_text(encoding="utf-8") if path.is_file() else ""
            lines += [f"### {model.__name__}", "", *_docstring(model), *fields(model)]
            if example.count("\n") < _LONG:
                lines += ["```json", example.rstrip("\n"), "```", ""]
            else:
                lines += [f"Example: [{path.name}](../../{path.relative_to(ROOT).as_posix()})", ""]
    return "\n".join(lines)


def sections(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    """Yield (dotted path, section with its defaults) of every section that has fields of its own."""
    values = [(name, getattr(section, name)) for name in type(section).model_fields]
    inner = [(name, value) for name, value in values if isinstance(value, Section)]
    if len(inner) < len(values):
        yield path, section
    for name, value in inner:
        yield from sections(value, f"{path}.{name}".lstrip("."))
    if isinstance(section, ModelsSection):
        yield f"{path}.NAME", FurtherSection()
    if isinstance(section, MethodsSection):
        for name in methods.known():
            yield from sections(options_of(methods.find(name))(), f"{path}.{name}")


def configuration_page() -> str:
    """Return the page of all options of a run and all variables of a deployment."""
    lines = ["# Configuration", "", "Options of a run's document, by section; docs/train.md says how documents are merged.", ""]  # fmt: skip
    for path, section in sections(RunConfig()):
        lines += [f"## `[{path}]`", "", *_docstring(type(section)), *fields(type(section), section)]
    head = "Addresses and secrets of a deployment. A variable that begins with `TRIFORGE_` and is not in this table is refused."
    lines += ["## Environment variables", "", head, "", *fields(Settings, prefix="TRIFORGE_")]
    return "\n".join(lines)


def algorithms_page() -> str:
    """Return the page of all options of the arithmetic, and of what each preset sets."""
    lines = ["# Options of the algorithm", "", "`[algorithm.overrides]` sets them.", "", *fields(CoreOptions)]  # fmt: skip
    for title, parts in (("Estimator", ESTIMATORS), ("Loss", LOSSES), ("Judge target", JUDGE_TARGETS)):  # fmt: skip
        for name in parts.names():
            options = parts.find(name).options
            own = fields(options) if options.model_fields else ["No options.", ""]
            lines += [f"## {title} `{name}`", "", *own]
    rows = ((f"`{name}`", ", ".join(f"`{k}` {v}" for k, v in preset_of(name).items())) for name in preset_names())  # fmt: skip
    return "\n".join([*lines, "## Presets, by what they set over the defaults", "", *table(("preset", "options"), rows)])  # fmt: skip


def environments_page() -> str:
    """Return docs/environments.md with its table written anew, from the attribute `about` of the families."""
    head = ("family", "what it is", "tasks", "licence", "extra", "steps/s", "trained on in", "page")
    rows = (_family(name, facts) for name in known() if (facts := about(load(name))))
    before, begin, rest = ENVIRONMENTS.read_text(encoding="utf-8").partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert begin and end, f"{ENVIRONMENTS}: the marks of the table are missing"  # noqa: PT018
    return "\n".join([f"{before}{begin}", *table(head, rows)[:-1], f"{end}{after}"])


def _family(name: str, facts: About) -> tuple[str, ...]:
    link = f"[README](../environments/{name}/README.md)"
    speed = "" if facts.steps_per_s is None else f"{facts.steps_per_s:,.0f}"
    extra = f"`{facts.extra}`" if facts.extra else "none"
    return f"`{name}`", facts.what, facts.tasks, facts.licence, extra, speed, facts.papers, link


def main(arguments: list[str]) -> int:
    """Write the pages; with `--check`, only report whether the one that is committed would change."""
    text = environments_page().rstrip("\n") + "\n"
    if "--check" in arguments:
        same = ENVIRONMENTS.read_text(encoding="utf-8") == text
        sys.stdout.write(
            "up to date\n" if same else f"{ENVIRONMENTS}: out of date, run make docs\n"
        )
        return 0 if same else 1
    ENVIRONMENTS.write_text(text, encoding="utf-8")
    REFERENCE.mkdir(exist_ok=True)
    pages = {
        "types": messages_page, "configuration": configuration_page, "algorithms": algorithms_page, "cli": cli_page,
        "rest": rest_page,
    }  # fmt: skip
    for name, page in pages.items():
        (REFERENCE / f"{name}.md").write_text(page().rstrip("\n") + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {ENVIRONMENTS.relative_to(ROOT)} and {REFERENCE.relative_to(ROOT)}/\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
