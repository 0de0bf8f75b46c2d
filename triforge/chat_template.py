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
        # `encode` would stop all other threads of the process for as long as it takes
        (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoded.ids)


def encode_behind(tokenizer: Tokenizer, text: str, before: str) -> list[int]:
    """Return the ids of a text as it stands behind another; those of it alone, where the two share a token."""
    if before:
        known, both = encode(tokenizer, before), encode(tokenizer, before + text)
        if both[: len(known)] == known:
            return both[len(known) :]
    return encode(tokenizer, text)


def adds_space(tokenizer_json: str) -> bool:
    """Return whether a tokenizer (SentencePiece) puts a space before a text that stands alone."""
    document = from_json(tokenizer_json)
    parts = [document.get("normalizer"), document.get("pre_tokenizer")]
    while parts:
        part = parts.pop() or {}
        kind = part.get("type")
        if kind == "Prepend" or (
            kind == "Metaspace" and part.get("prepend_scheme", "always") != "never"
        ):
            return True
        if kind == "ByteLevel" and part.get("add_prefix_space"):
            return True
        parts += [*part.get("normalizers", ()), *part.get("pretokenizers", ())]
    return False


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


def templates_of(folder: Path) -> dict[str, str]:
    """Return the chat templates of a folder by name: `default`, and perhaps `tool_use` for conversations with tools.

    As in transformers, files (chat_template.jinja, additional_chat_templates/NAME.jinja) come before `chat_template` of
    tokenizer_config.json.
    """
    configured = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(configured, list):
        named = {str(item.get("name")): item.get("template") for item in configured if isinstance(item, dict)}  # fmt: skip
    else:
        named = {"default": configured}
    files = {
        path.stem: read_text(path)
        for path in sorted(folder.glob("additional_chat_templates/*.jinja"))
    }
    if (folder / "chat_template.jinja").exists():
        files["default"] = read_text(folder / "chat_template.jinja")
    templates = files or {name: text for name, text in named.items() if isinstance(text, str)}
    if "default" not in templates:
        given = f"those named {', '.join(sorted(templates))}" if templates else "none"
        raise WeightsError(
            f"model folder {folder}: no default chat template, given {given}; expected chat_template.jinja, or chat_template "
            "in tokenizer_config.json"
        )
    return templates


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
