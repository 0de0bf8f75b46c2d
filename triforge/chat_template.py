"""The parts of a model folder for conversations: chat template, tokenizer, special tokens and end-of-text ids.

A folder is not trusted: a file that is not regular, too large or nested too deeply is refused before it is read.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json
from tokenizers import Tokenizer

from triforge.errors import InputError, TriforgeError, WeightsError

_LARGEST: Final = 1 << 28  # bytes of a text file; large tokenizers have a tenth of it


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to every string, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): with_strings(item, change) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [with_strings(item, change) for item in value]
    return value


def tokenizer_of(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json's text, without padding and truncation."""
    with _no_panic(WeightsError, "tokenizer.json: not a tokenizer"):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Return the ids of a text."""
    with _no_panic(InputError, "the tokenizer fails on the text"):
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Return the text of ids."""
    with _no_panic(InputError, "the tokenizer fails on the tokens"):
        return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))


@contextmanager
def _no_panic(kind: type[TriforgeError], sentence: str) -> Iterator[None]:
    """Raise errors of the Rust library as ours: bare Exception, and after a panic (a regex that takes too long) no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise kind(f"{sentence}: {error}") from error
        raise


def read_text(path: Path) -> str:
    """Return the text of a file of a model folder."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise WeightsError(
                f"model folder {path.parent}: {path.name}: expected a regular file of at most {_LARGEST} bytes"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WeightsError(f"model folder {path.parent}: {path.name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(
            f"model folder {path.parent}: {path.name}: cannot be read: {error}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; a missing file is an empty one."""
    if not path.exists():
        return {}
    try:
        document = from_json(read_text(path))
    except ValueError as error:
        raise WeightsError(
            f"model folder {path.parent}: {path.name}: cannot be read: {error}"
        ) from error
    if not isinstance(document, dict):
        raise WeightsError(f"model folder {path.parent}: {path.name}: expected an object")
    return document


def special_tokens_of(folder: Path) -> dict[str, str]:
    """Return special tokens by name (`bos_token`, ...), from special_tokens_map.json and tokenizer_config.json."""
    configured = read_json(folder / "special_tokens_map.json") | read_json(
        folder / "tokenizer_config.json"
    )
    return {
        name: content
        for name, value in configured.items()
        if name.endswith("_token") and (content := _content(value))
    }


def _content(value: Any) -> str:
    """Return a special token, which configurations hold as a string or as an object, as a string."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def template_of(folder: Path) -> str:
    """Return the chat template: chat_template.jinja, else `chat_template` of tokenizer_config.json."""
    if (folder / "chat_template.jinja").exists():
        return read_text(folder / "chat_template.jinja")
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {str(item.get("name")): item.get("template") for item in template}
        template = named.get("default")
    if not isinstance(template, str):
        raise WeightsError(
            f"model folder {folder}: no chat template; expected chat_template.jinja, or chat_template in "
            "tokenizer_config.json"
        )
    return template


def vocab_size_of(folder: Path) -> int:
    """Return the model's number of ids, which may be larger than its tokenizer's; 0 if the config has none."""
    config = read_json(folder / "config.json")
    inner = config.get("text_config")  # of a vision model
    value = (config | inner if isinstance(inner, dict) else config).get("vocab_size")
    return value if isinstance(value, int) else 0


def eos_ids_of(folder: Path) -> list[int]:
    """Return the end-of-text ids of the model's configuration, in its order."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        ids += [value] if isinstance(value, int) else value if isinstance(value, list) else []
    return ids
