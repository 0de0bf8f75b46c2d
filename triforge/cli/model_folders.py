"""Folders of models that people name as a folder, an id on the Hugging Face hub, or `tiny`."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.planning.plan import served
from triforge.planning.shapes import ModelShape
from triforge.store.tensor_files import read_folder
from triforge.supervisor.process import run_reporting
from triforge.types import Params

TINY: Final = "tiny"
_HUB_ID: Final = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # ./name is a folder
# A tiny model has few words.
TINY_DOCUMENT: Final[dict[str, Any]] = {"models": {"policy": {"max_new_tokens": 16}}}
_RECIPE: Final = "5"  # a new number for each change of how tiny models are made
_ALSO: Final = (
    "; tiny is made for policies only, and the tiny judge of `make demo` is named in var/demo/demo.toml",
    ", or tiny",
)
_FILES: Final = [
    "*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.spm", "*.bpe", "*.codes", "tokenizer.*",
]  # fmt: skip


def cache_folder() -> Path:
    """Return the folder of models kept between runs: `$XDG_CACHE_HOME/triforge`, usually `~/.cache/triforge`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "triforge"


def model_folder(
    role: str,
    name: str,
    *,
    tell: Callable[[str], None],
    env: str,
    generate: Params,
    options: Params,
) -> Path:
    """Return the folder of a model; one of the hub is fetched, a tiny one is made for the environment.

    Raises:
        ConfigError: there is no such folder, the hub does not send it, or no tiny one can be made.
    """
    folder = Path(name).expanduser()
    if folder.exists():
        return folder.resolve()
    if name == TINY and role == "policy":
        return _tiny(tell, env, generate, options)
    if _HUB_ID.fullmatch(name):
        return _from_hub(name, tell, _FILES)
    raise ConfigError(
        f"models.{role}: given {name!r}, expected a model folder that exists, the id of a model on the Hugging Face hub "
        f"(ORGANISATION/NAME){_ALSO[role == 'policy']}"
    )


def config_folder(role: str, name: str, tell: Callable[[str], None]) -> Path:
    """Return a folder with the model's `config.json`; of a model of the hub only that file is fetched. ConfigError: there is none."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if _HUB_ID.fullmatch(name) and not folder.exists():
        return _from_hub(name, tell, ["config.json"])
    raise ConfigError(
        f"models.{role}: given {name!r}, expected a folder with config.json (its weights need not be there), or the id of a model on "
        "the Hugging Face hub (ORGANISATION/NAME)"
    )


def shapes_of(config: RunConfig, tell: Callable[[str], None]) -> dict[str, ModelShape]:
    """Return the shapes of all models that a run serves or trains. ConfigError: a model has no `config.json` here."""
    shapes: dict[str, ModelShape] = {}
    for role in dict.fromkeys((*served(config), *config.trained)):
        path = getattr(config.models, role).path
        if not path:
            raise ConfigError(f"models.{role}.path: given nothing, expected a model to plan for")
        shapes[role] = ModelShape.of_folder(config_folder(role, path, tell))
    return shapes


def learning_rate(folder: Path, *, lora: bool) -> float | None:
    """Return a rate for a model of N parameters: `1e-6 (7e9 / N)^0.56`, three times that for an adapter; None without weights, which a start refuses.

    Between the rates in use for 7e9 and 1e5 parameters (experiments/results/first_training.md). Raises WeightsError: the folder cannot be read.
    """
    numbers = sum(math.prod(entry.shape) for entry in read_folder(folder).values())
    if not numbers:
        return None
    rate = 1e-6 * (7e9 / numbers) ** 0.56 * (3 if lora else 1)
    return float(f"{rate:.1e}")


def _from_hub(name: str, tell: Callable[[str], None], files: list[str]) -> Path:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ConfigError(
            f"{name}: huggingface_hub is not installed; give the folder of the model instead"
        ) from None
    tell(f"{name}: from the Hugging Face hub, or from its cache")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise ConfigError(
            f"{name}: no such folder here, and the Hugging Face hub does not send it ({str(error).splitlines()[0]}). Without a "
            f"network fetch it elsewhere (`hf download {name} --local-dir FOLDER`) and name that folder; a model that "
            "asks for consent needs HF_TOKEN"
        ) from None


def _tiny(tell: Callable[[str], None], env: str, generate: Params, options: Params) -> Path:
    """Return the cached tiny model of the environment and its options; the first time it is made."""
    folder = tiny_folder(env, generate, options)
    if (folder / "manifest.json").is_file():  # the folder appears whole or not at all
        tell(f"tiny: the model of an earlier run; delete {folder} to make a new one")
        return folder
    tell(f"tiny: making a Llama of 0.1 M parameters for {env}, once; a minute or two")
    command = [
        sys.executable,
        "-m",
        "demo.models",
        "tiny-policy",
        "--out",
        str(folder),
        "--env",
        env,
    ]
    command += ["--generate", _sorted(generate), "--options", _sorted(options)]
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        code, errors = run_reporting(command, lambda line: tell(f"tiny: {line}"), threads)
    except KeyboardInterrupt:
        tell("tiny: stopped; nothing of it is kept")
        raise
    if code:
        reason = errors.strip() or f"ended with code {code}"
        raise ConfigError(f"tiny: {reason.splitlines()[-1]}")
    return folder


def tiny_folder(env: str, generate: Params, options: Params) -> Path:
    """Return the folder of a tiny model; it changes with the options, the files that they name and the family's own file."""
    files = filter(None, map(_digest, (*generate.values(), *options.values(), _module(env))))
    key = "\0".join((_RECIPE, env, _sorted(generate), _sorted(options), *files))
    return cache_folder() / TINY / hashlib.sha256(key.encode()).hexdigest()[:12]


def _sorted(params: Params) -> str:
    return json.dumps(params, sort_keys=True)


def _module(env: str) -> str:
    """Return the file of a family that is named by its path, else an empty string."""
    module, colon, _ = env.partition(":")
    with suppress(ImportError, ValueError):
        spec = find_spec(module) if colon else None
        return (spec and spec.origin) or ""
    return ""


def _digest(value: JsonValue) -> str:
    """Return the digest of a file that an option names; empty for other options."""
    if not (isinstance(value, str) and os.path.isfile(value)):  # noqa: PTH113 (an option may be no path at all)
        return ""
    with Path(value).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
