"""Models as people name them, as folders: a folder, an id on the Hugging Face hub, or `tiny`."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from triforge.errors import ConfigError
from triforge.supervisor.process import run_telling
from triforge.types import Params

TINY: Final = "tiny"
TINY_DOCUMENT: Final[dict[str, Any]] = {
    "models": {"policy": {"max_new_tokens": 16}},
    "trainer": {"policy": {"learning_rate": 5e-4}},
}
"""What a run of a tiny model begins with: its words are few, and its weights want large steps."""
_ALSO: Final = (
    "; tiny is made for policies alone, and the tiny judge of `make demo` is named in var/demo/demo.toml",
    ", or tiny",
)
_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def cache_folder() -> Path:
    """Where models are kept between runs: `$XDG_CACHE_HOME/triforge`, usually `~/.cache/triforge`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "triforge"


def model_folder(
    role: str,
    given: str,
    *,
    tell: Callable[[str], None],
    env: str,
    generate: Params,
    options: Params,
) -> Path:
    """The folder of a model as it was named; one of the hub is fetched, a tiny one is made for the environment.

    Raises:
        ConfigError: there is no such folder, the hub does not give it, or no tiny one can be made.
    """
    folder = Path(given).expanduser()
    if folder.exists():
        return folder.resolve()
    if given == TINY and role == "policy":
        return _tiny(tell, env, generate, options)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", given):  # ./name is a folder
        return _from_hub(given, tell)
    raise ConfigError(
        f"models.{role}: given {given!r}, expected a model folder that exists, the id of a model on the Hugging Face hub "
        f"(ORGANISATION/NAME){_ALSO[role == 'policy']}"
    )


def _from_hub(given: str, tell: Callable[[str], None]) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{given}: huggingface_hub is not installed; give the folder of the model instead"
        ) from None
    tell(f"{given}: from the Hugging Face hub, or from its cache")
    try:
        return Path(hub.snapshot_download(given, allow_patterns=_FILES))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise ConfigError(
            f"{given}: no such folder here, and the Hugging Face hub does not give it ({str(error).splitlines()[0]}). Without a "
            f"network fetch it elsewhere (`hf download {given} --local-dir FOLDER`) and name that folder; a model that "
            "asks for consent needs HF_TOKEN"
        ) from None


def _tiny(tell: Callable[[str], None], env: str, generate: Params, options: Params) -> Path:
    """The cached tiny model of the environment and its options, made the first time."""
    asked, folder = _asked(generate, options), tiny_folder(env, generate, options)
    if (folder / "manifest.json").is_file():  # the folder appears whole or not at all
        tell(f"tiny: the one made before; delete {folder} to have it made anew")
        return folder
    tell(f"tiny: making a Llama of 0.1 M parameters for {env}, once; about a minute")
    command = ["--env", env, "--generate", asked[0], "--options", asked[1]]
    try:
        code, complaints = run_telling(
            [sys.executable, "-m", "demo.models", "tiny-policy", "--out", str(folder), *command],
            lambda line: tell(f"tiny: {line}"),
            {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip
    except KeyboardInterrupt:
        tell("tiny: stopped; nothing of it is kept")
        raise
    if code:
        raise ConfigError(
            f"tiny: {(complaints.strip() or f'ended with code {code}').splitlines()[-1]}"
        )
    return folder


def _asked(*given: Params) -> list[str]:
    return [json.dumps(one, sort_keys=True) for one in given]


def tiny_folder(env: str, generate: Params, options: Params) -> Path:
    """Where the tiny model of an environment and its options is kept: another place when a file that an option names, or the file of a family of yours, changes."""
    files = filter(None, map(_content, (*generate.values(), *options.values(), _module(env))))
    key = "\0".join((env, *_asked(generate, options), *files))
    return cache_folder() / TINY / hashlib.sha256(key.encode()).hexdigest()[:12]


def _module(env: str) -> str:
    """The file of a family that is named by its path."""
    module, colon, _ = env.partition(":")
    with suppress(ImportError, ValueError):
        found = find_spec(module) if colon else None
        return (found and found.origin) or ""
    return ""


def _content(value: JsonValue) -> str:
    """What a file that an option names holds, as a digest; empty for other options."""
    if not (isinstance(value, str) and os.path.isfile(value)):  # noqa: PTH113 (an option may be no path at all)
        return ""
    with Path(value).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
