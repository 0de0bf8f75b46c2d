"""What a model folder says about conversations: its chat template, tokenizer, special tokens and end-of-text ids.

A template comes with a model and is not trusted: it runs in jinja's sandbox, with the settings and functions that
transformers gives it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from triforge.errors import InputError, WeightsError


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` blocks of newer templates; here they only show their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute without ClassVar

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(template: str) -> jinja2.Template:
    """The template, compiled in the sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise WeightsError(f"chat template: {error}") from error


def fill(template: jinja2.Template, **given: Any) -> str:
    """What a template writes."""
    try:
        return template.render(**given)
    except jinja2.TemplateError as error:
        raise InputError(f"the chat template refuses the messages: {error}") from error
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise InputError(
            f"the chat template fails on the messages: {type(error).__name__}: {error}"
        ) from error


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every string in it changed, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): with_strings(item, change) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [with_strings(item, change) for item in value]
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes for HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def tokenizer_of(text: str) -> Tokenizer:
    """The tokenizer that the text of a tokenizer.json describes; it neither pads nor cuts."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the Rust library raises bare Exception
        raise WeightsError(f"tokenizer.json: not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_text(path: Path) -> str:
    """A file of a model folder."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WeightsError(f"model folder {path.parent}: {path.name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"model folder {path.parent}: {path.name}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a missing file is an empty one."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise WeightsError(f"model folder {path.parent}: {path.name}: {error}") from error
    if not isinstance(found, dict):
        raise WeightsError(f"model folder {path.parent}: {path.name}: expected an object")
    return found


def special_tokens_of(folder: Path) -> dict[str, str]:
    """Special tokens by name (`bos_token`, `eos_token`, ...), of special_tokens_map.json and tokenizer_config.json."""
    found = read_json(folder / "special_tokens_map.json") | read_json(
        folder / "tokenizer_config.json"
    )
    return {
        name: content
        for name, value in found.items()
        if name.endswith("_token") and (content := _content(value))
    }


def _content(value: Any) -> str:
    """A special token as a string; configurations hold either the string or an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def template_of(folder: Path) -> str:
    """The source of the chat template: chat_template.jinja, else `chat_template` of tokenizer_config.json."""
    if (folder / "chat_template.jinja").exists():
        return read_text(folder / "chat_template.jinja")
    found = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {str(item.get("name")): item.get("template") for item in found}
        found = named.get("default")
    if not isinstance(found, str):
        raise WeightsError(
            f"model folder {folder}: no chat template; expected chat_template.jinja, or chat_template in "
            "tokenizer_config.json"
        )
    return found


def vocab_size_of(folder: Path) -> int:
    """How many ids the model itself knows, which may be more than its tokenizer has names for; 0 if it does not say."""
    config = read_json(folder / "config.json")
    inner = config.get("text_config")  # where a model that sees says it
    value = (config | inner if isinstance(inner, dict) else config).get("vocab_size")
    return value if isinstance(value, int) else 0


def eos_ids_of(folder: Path) -> list[int]:
    """The ids that the model's own configuration says end a text, first named first."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        found += [value] if isinstance(value, int) else value if isinstance(value, list) else []
    return found
