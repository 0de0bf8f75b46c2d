"""Write the generated pages: docs/reference/ (not committed) and the table of docs/environments.md; `--check` only checks the table.

    python -m scripts.gen_docs [--check]

Messages: their docstrings, JSON schemas and the examples in tests/contract/types. Configuration: `triforge.config`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from scripts.gen_environments import environments_page
from scripts.gen_interfaces import cli_page, rest_page
from triforge import methods, types
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import ESTIMATORS
from triforge.algorithms.judge_targets import JUDGE_TARGETS
from triforge.algorithms.losses import LOSSES
from triforge.algorithms.presets import preset_names, preset_of
from triforge.algorithms.registry import Only, Options, allowed
from triforge.config import RunConfig, Section, Settings, parse
from triforge.config.methods import MethodsSection, options_of
from triforge.config.models import FurtherSection, ModelsSection
from triforge.errors import ConfigError
from triforge.types import Message

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
EXAMPLES = ROOT / "tests" / "contract" / "types"

_WIDTH = 100  # characters of an example's line
_LONG = 60  # lines; a longer example is only linked

# The loop, from the pool to what people see: every module of `triforge.types`, and the bodies of requests by people.
STRETCHES = (
    ("services.env_adapter.pools.changes", "Changes by people", "Bodies of requests; clients send them as plain JSON."),
    ("services.env_adapter.sessions.store", "Requests of agents", "Bodies of requests; clients send them as plain JSON."),
    ("triforge.types.env_adapter", "Pools and adaptation", "Tasks enter, are planned, measured, rewritten, and changed by people."),
    ("triforge.types.rollout", "Rollouts and votes", "One job a group; the payloads lie in Redis under their ids."),
    ("triforge.types.policy", "Text and tokens", "Episodes, judge and rewriter ask a policy service; it is the only one that is waited for."),
    ("triforge.types.sessions", "Sessions", "Agents that are not ours ask the policy, and what they sampled becomes a trajectory."),
    ("triforge.types.learner", "Training and weights", "Batches go to the learners, and their weights to the policy services."),
    ("triforge.types.people", "Runs and events", "What people and dashboards read."),
    ("services.reward.requests", "Judgements", "Votes on trajectories that were played elsewhere (`POST /v1/judge`)."),
    ("triforge.types.base", "Everywhere", "What the others are made of."),
)  # fmt: skip

# Documents whose fields are fine one by one; `parse` says why they are refused.
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"run": {"staleness_bound": 1}, "algorithm": {"overrides": {"off_policy": "none"}}},
    {"run": {"judge_staleness_bound": 1}},
    {"run": {"stale_votes": "drop"}, "algorithm": {"overrides": {"use_outcome": False}}},
    {"run": {"min_measured": 9}},
    {"env_adapter": {"rollouts": 16}, "adaptation": {"max_rollouts": 8}},
    {"run": {"groups_per_step": 1}, "adaptation": {"pairs_on_top": False}},
    {"models": {"policy": {"top_p": 0.9}}},
    {"models": {"reward": {"temperature": 0}}},
    {"methods": {"envrl": {"sp": {"lambda0": 0.1}, "layout": "in_sequence", "placebo": "shuffle"}}},
    {"trainer": {"policy": {"lora_alpha": 64}}},
    {"methods": {"rlve": {"levels": 2}}},
)


# ---- JSON and types as text ----


def pretty(value: Any, indent: int = 0) -> str:
    """JSON in which a value stands on one line if it fits, and lists of numbers are wrapped like text."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= _WIDTH or not isinstance(value, dict | list):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        items = [
            f"{pad}{json.dumps(key, ensure_ascii=False)}: {pretty(item, indent + 2)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    if all(isinstance(item, int | float) for item in value):
        return "[\n" + "\n".join(_wrapped(value, pad)) + "\n" + " " * indent + "]"
    rows = [pad + pretty(item, indent + 2) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"


def _wrapped(numbers: list[float], pad: str) -> list[str]:
    lines, line = [], pad
    for place, number in enumerate(numbers):
        word = json.dumps(number) + ("" if place == len(numbers) - 1 else ", ")
        if len(line) + len(word.rstrip()) > _WIDTH:
            lines.append(line.rstrip())
            line = pad
        line += word
    return [*lines, line.rstrip()]


def type_of(schema: dict[str, Any]) -> str:
    """Return a fragment of a JSON schema in words; other types as links."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name == "Algorithm" or name.endswith("Options"):
            return f"[{name}](algorithms.md)"
        if name == "Sampling" or name.endswith("Section"):
            return f"[{name}](configuration.md)"
        return "any JSON" if name == "JsonValue" else f"[{name}](#{name.lower()})"
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


def cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default_factory, type | FunctionType) and field.default_factory is not dict:
        return "its defaults"
    return f"`{_value(field.get_default(call_default_factory=True))}`"


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        changed = value.model_dump(exclude_defaults=True)
        return f"{type(value).__name__}({', '.join(f'{k}={v}' for k, v in changed.items())})"
    if isinstance(value, SecretStr):
        return '""'
    return json.dumps(value, ensure_ascii=False)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return lines


def _paragraphs(docstring: str) -> str:
    return "\n\n".join(
        part.replace("\n", " ") for part in inspect.cleandoc(docstring).split("\n\n")
    )


# ---- types ----


def models_of(module: str) -> list[type[Message]]:
    """Return the messages that a module defines, in their order; not the private bases of others."""
    return [
        item
        for name, item in vars(import_module(module)).items()
        if isinstance(item, type)
        and not name.startswith("_")
        and issubclass(item, Message)
        and item is not Message
        and item.__module__ == module
    ]


def containers() -> dict[str, list[str]]:
    """Message name to the names of the types that hold it directly."""
    found: dict[str, list[str]] = {}
    for module, _, _ in STRETCHES:
        for model in models_of(module):
            properties = json.dumps(model.model_json_schema().get("properties", {}))
            for name in dict.fromkeys(re.findall(r'"#/\$defs/(\w+)"', properties)):
                found.setdefault(name, []).append(model.__name__)
    return found


def message_section(model: type[Message], held_by: list[str]) -> list[str]:
    """One message: what it is, who holds it, its fields, its example."""
    schema = model.model_json_schema()["properties"]
    lines = [f"### {model.__name__}", "", _paragraphs(model.__doc__ or ""), ""]
    if held_by:
        lines += ["Part of " + ", ".join(f"[{n}](#{n.lower()})" for n in held_by) + ".", ""]
    rows = (
        (f"`{name}`", type_of(schema[name]), _default(field))
        for name, field in model.model_fields.items()
    )
    lines += [*_table(("field", "type", "default"), rows), ""]
    path = EXAMPLES / f"{model.__name__}.json"
    example = path.read_text(encoding="utf-8").rstrip("\n")
    if example.count("\n") < _LONG:
        return [*lines, "```json", example, "```", ""]
    return [*lines, f"Example: [{path.name}](../../{path.relative_to(ROOT).as_posix()})", ""]


def words_section() -> list[str]:
    rows = (
        (f"`{name}`", ", ".join(f"`{word}`" for word in get_args(found)))
        for name, found in vars(types).items()
        if get_origin(found) is Literal
    )
    return ["## Words", "", *_table(("name", "one of"), rows), ""]


def messages_page() -> str:
    lines = [
        "# Messages",
        "",
        "<!-- Written by scripts/gen_docs.py; change the types or tests/contract/types and run `make docs`. -->",
        "",
        "After this page you can read and write every message that crosses a process border. They are in the order of the",
        "loop, frozen, refuse unknown fields and travel as JSON. Spans are half open, `[start, end)`. Times are seconds; `at`",
        "and `created_at` are seconds since 1970. The examples follow one task of the household family at step 7 of a run,",
        "with two rollouts of four steps. Each is a file in `tests/contract/types/` that a test reads, writes back and",
        "compares.",
        "",
    ]
    held = containers()
    for module, title, _ in STRETCHES:
        names = ", ".join(f"[{m.__name__}](#{m.__name__.lower()})" for m in models_of(module))
        lines += [f"- {title}: {names}"]
    for module, title, text in STRETCHES:
        lines += ["", f"## {title}", "", text, ""]
        for model in models_of(module):
            lines += message_section(model, held.get(model.__name__, []))
        lines.pop()
    return "\n".join([*lines, "", *words_section()])


# ---- configuration ----


def sections(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    """(dotted path, section with its defaults) of every section that has fields of its own."""
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


def config_section(path: str, section: Section) -> list[str]:
    schema = type(section).model_json_schema()["properties"]
    rows = (
        (
            f"`{name}`",
            type_of(schema[name]),
            f"`{_value(getattr(section, name))}`",
            (field.description or "").replace("\n", " "),
        )
        for name, field in type(section).model_fields.items()
        if not isinstance(getattr(section, name), Section)  # has a heading of its own
    )
    head = [f"## `[{path}]`", "", _paragraphs(type(section).__doc__ or ""), ""]
    return [*head, *_table(("field", "type", "default", "what it does"), rows), ""]


def refusals() -> Iterator[tuple[str, str]]:
    """(document, sentence) of combinations that are refused."""
    for document in IMPOSSIBLE:
        try:
            parse(document)
        except ConfigError as error:
            yield f"`{json.dumps(document)}`", error.detail
        else:
            raise SystemExit(f"{document} is not refused any more: mend IMPOSSIBLE in {__file__}")


def settings_section() -> list[str]:
    schema = Settings.model_json_schema()["properties"]
    rows = (
        (
            f"`TRIFORGE_{name.upper()}`",
            type_of(schema[name]),
            f"`{_value(field.default)}`",
            (field.description or "").replace("\n", " "),
        )
        for name, field in Settings.model_fields.items()
    )
    return [
        "## Environment variables",
        "",
        "Addresses and secrets of a deployment, never part of a run's document. `triforge up` sets those that the environment",
        "does not for the processes it starts. A variable that begins with `TRIFORGE_` and is not in this table is refused.",
        "",
        *_table(("variable", "type", "default", "what it is"), rows),
        "",
    ]


def configuration_page() -> str:
    presets = ", ".join(f"`{name}`" for name in preset_names())
    lines = [
        "# Configuration",
        "",
        "<!-- Written by scripts/gen_docs.py; change triforge/config/ and run `make docs`. -->",
        "",
        "After this page you can write the document of a run and set every variable of a deployment.",
        "",
        "A run is described by one document. Unknown fields and impossible values are refused with the field, what was given",
        "and what is allowed. It is merged from, the later over the earlier:",
        "",
        "1. the defaults below;",
        "2. the deployment's own document: `triforge up --config FILE`, TOML;",
        "3. what the run brings: `config` in `POST /v1/runs` (JSON of the same shape), or `triforge run start --config FILE`",
        "   and `--set section.field=value`.",
        "",
        "Another `algorithm.preset` is that preset: the `algorithm.overrides` below it are left out.",
        "",
        "Engines start with `[models.*] path`, so it belongs into the deployment's document. Examples: [configs/](../../configs/).",
        "",
    ]
    for path, section in sections(RunConfig()):
        lines += config_section(path, section)
    lines += [
        "## Presets",
        "",
        f"`[algorithm] preset` is one of {presets}. What each is, and the value of every option that",
        "`[algorithm.overrides]` may turn: [algorithms.md](algorithms.md).",
        "",
        "## Combinations that are refused",
        "",
        *_table(("given", "answer"), refusals()),
        "",
        *settings_section(),
    ]
    return "\n".join(lines)


# ---- options of the arithmetic ----


def _options(kind: type[Options], presets: tuple[str, ...]) -> list[str]:
    """Yield the options of the core or of a part: limits, what each preset makes of them, what they do."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, field in kind.model_fields.items():
            if name == "name":
                continue
            values = [preset_of(preset).get(name, field.default) for preset in presets]
            needs = [f"Read only with {o.needs}." for o in field.metadata if isinstance(o, Only)]
            text = " ".join([field.description or "", *needs]).replace("\n", " ")
            yield (f"`{name}`", allowed(field), *map(_plain, values), text)

    return _table(("option", "allowed", *(f"`{p}`" for p in presets), "what it does"), rows())


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"[{value[0]:g}, {value[1]:g}]" if isinstance(value, tuple) else f"{value}"


def algorithms_page() -> str:
    """Return the page of all options of the arithmetic."""
    lines = [
        "# Options of the algorithm",
        "",
        "`[algorithm.overrides]` sets the options of the core and of the chosen estimator, loss and target.",
        "",
        *_options(CoreOptions, ("rlanything_paper", "rlanything")),
    ]
    for title, parts in (
        ("Estimators", ESTIMATORS),
        ("Losses", LOSSES),
        ("Targets of the reward model", JUDGE_TARGETS),
    ):
        lines += ["", f"### {title}, and the options that only they read", ""]
        for name in parts.names():
            part = parts.find(name)
            if not part.options.model_fields:
                lines += [f"`{name}` has none.", ""]
            else:
                lines += [f"`{name}`:", "", *_options(part.options, ("rlanything",)), ""]
        lines.pop()
    rows = (
        (f"`{name}`", ", ".join(f"`{k}` {_plain(v)}" for k, v in preset_of(name).items()))
        for name in preset_names()
        if name != "rlanything"
    )
    lines += ["", "### The presets, by what they set over the defaults", ""]
    return "\n".join([*lines, *_table(("preset", "options"), rows)])


def main(arguments: list[str]) -> int:
    """Write the pages; with `--check`, only say whether the one that is committed would change."""
    page = ROOT / "docs" / "environments.md"
    text = environments_page().rstrip("\n") + "\n"
    if "--check" in arguments:
        same = page.read_text(encoding="utf-8") == text
        sys.stdout.write(
            "up to date\n" if same else "docs/environments.md is out of date: make docs\n"
        )
        return 0 if same else 1
    page.write_text(text, encoding="utf-8")
    REFERENCE.mkdir(exist_ok=True)
    for name, reference in (
        ("types.md", messages_page()),
        ("configuration.md", configuration_page()),
        ("algorithms.md", algorithms_page()),
        ("cli.md", cli_page()),
        ("rest.md", rest_page()),
    ):
        (REFERENCE / name).write_text(reference.rstrip("\n") + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {page.relative_to(ROOT)} and {REFERENCE.relative_to(ROOT)}/\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
