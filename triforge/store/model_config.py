"""Checks of a model's `config.json`: whether it can be loaded, and where the forward passes of two models differ."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from triforge.errors import WeightsError
from triforge.store.tensor_files import Entry, same_bytes
from triforge.vision.image_spec import KINDS

# Every other field counts for the forward pass. These belong to training, generation, labels or the file's writer; the size of
# a vocabulary shows in the shapes of tensors.
_OTHER = frozenset({
    "transformers_version", "dtype", "torch_dtype", "auto_map", "use_cache", "vocab_size", "tokenizer_class",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "initializer_range", "initializer_factor", "pretraining_tp", "gradient_checkpointing", "chunk_size_feed_forward",
    "router_aux_loss_coef", "aux_loss_alpha", "output_router_logits", "output_attentions", "output_hidden_states",
    "return_dict", "torchscript", "use_bfloat16", "tf_legacy_loss", "pruned_heads", "problem_type", "task_specific_params",
    "id2label", "label2id", "num_labels", "finetuning_task", "prefix", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty", "length_penalty",
    "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "temperature", "top_k", "top_p", "typical_p", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
})  # fmt: skip
_TIE = "tie_word_embeddings"
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_projection)\.weight$")
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|embed_in|wte|word_embeddings|embeddings|tokens_embed)\.weight$"
)
_ROPE = "rope_parameters"  # where transformers 5 keeps all of it, and older versions none
_DEEPEST = 4
_DEFAULTS = {"rope_type": "default"}  # of absent fields, the same in every family


def difference(given: Mapping[str, Any], serving: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return a field in which two forward passes differ, and its two values; None if there is none.

    A field that is absent or null in one of them is skipped: its default differs from family to family.
    """
    mine, theirs = dict(_fields(given)), dict(_fields(serving))
    for name in mine | theirs:
        default = _DEFAULTS.get(name.rpartition(".")[2])
        one, other = mine.get(name, default), theirs.get(name, default)
        if one is not None and other is not None and one != other:
            return name, one, other
    return None


def _fields(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a forward pass: those of nested objects with their path, those of rotary embeddings without."""
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", _ROPE):
        value = config.get(name)
        rope |= value if isinstance(value, Mapping) else {}
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    plain = {k: v for k, v in config.items() if k not in ("rope_scaling", _ROPE)}
    for name, value in {**plain, **rope}.items():
        if name in _OTHER or name.startswith("_") or "dropout" in name or name.endswith("drop"):
            continue
        if isinstance(value, Mapping) and within.count(".") < _DEEPEST:
            yield from _fields(value, f"{within}{name}.")
        elif value is not None:
            yield within + name, value


@functools.cache
def _causal() -> frozenset[str]:
    """Return the model types with a causal model, from the source of transformers: importing it takes seconds."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    source = Path(spec.origin).with_name("models") / "auto" / "modeling_auto.py"
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    listed = text.partition("\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")[2].partition("\n)\n")[0]
    return frozenset(re.findall(r'^        \("([^"]+)", ', listed, re.MULTILINE))


def demand_known(folder: Path, config: Mapping[str, Any]) -> None:
    """Accept a config of a model type that can be loaded here; code in a model folder is never run.

    Raises:
        WeightsError: the installed transformers has no causal model of this type, and it is no vision model that is known.
    """
    kind, known = config.get("model_type"), _causal()
    if known and kind not in known | set(KINDS):
        code = ", and code of the folder (auto_map) is never run" if "auto_map" in config else ""
        raise WeightsError(
            f"model folder {folder}: config.json: model_type is {kind!r:.80}, which the installed transformers does not know "
            f"as a causal language model{code}; expected one that it knows (docs/train.md lists those that are tried)"
        )


def demand_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Entry]) -> None:
    """Accept a folder whose output matrix is the one that every engine uses; blocking.

    Where `tie_word_embeddings` is true, SGLang and vLLM pass over a head of its own, and transformers uses it if it differs from
    the embedding: the same folder would be two models. A merged adapter and a resized vocabulary leave such folders behind.

    Raises:
        WeightsError: there are two different matrices, or none.
    """
    tied, path = ties_embeddings(config), folder / "config.json"
    heads = [entry for name, entry in tensors.items() if _HEAD.search(name)]
    embeddings = [entry for name, entry in tensors.items() if _EMBEDDING.search(name)]
    if tied and heads and embeddings:
        if not any(same_bytes(heads[0], embedding) for embedding in embeddings):
            head, embedding = heads[0], embeddings[0]
            raise WeightsError(
                f"{path}: tie_word_embeddings is true, but {head.name} {[*head.shape]} is not {embedding.name} "
                f"{[*embedding.shape]}: some engines would use one and some the other; expected one matrix. Set "
                f"tie_word_embeddings to false to keep both (as transformers does), or delete {head.name}"
            )
    elif tied is False and not heads and any(".embed_tokens." in e.name for e in embeddings):
        raise WeightsError(
            f"{path}: tie_word_embeddings is false, but the folder has no lm_head.weight; expected one, or true where the "
            "embedding is the output matrix"
        )


def ties_embeddings(config: Mapping[str, Any]) -> bool | None:
    """Return whether the output matrix is the embedding; None if that is not known."""
    parts = (part for part in (config, config.get("text_config")) if isinstance(part, Mapping))
    given = {bool(part[_TIE]) for part in parts if _TIE in part}
    values = given or _tie_defaults(str(config.get("model_type")))
    return next(iter(values)) if len(values) == 1 else None


@functools.cache
def _tie_defaults(kind: str) -> frozenset[bool]:
    """Return the defaults of the classes of a model type, from the source of transformers."""
    spec = find_spec("transformers")
    name = kind.replace("-", "_").removesuffix("_text")
    if spec is None or spec.origin is None or not name.isidentifier():
        return frozenset()
    source = Path(spec.origin).with_name("models") / name / f"configuration_{name}.py"
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    found = re.findall(rf"^    {_TIE}: .*= (\w+)$", text, re.MULTILINE)
    return frozenset(value == "True" for value in found)


def demand_full_attention(config: Mapping[str, Any]) -> None:
    """Accept a config whose layers attend to all earlier tokens, as the local engine computes them; else raise WeightsError."""
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    layers, window = text.get("layer_types"), text.get("sliding_window")
    kinds = set(layers) if layers else {"full_attention"}
    if not layers and window and text.get("use_sliding_window", True):
        longest = text.get("max_position_embeddings", window)
        kinds = {"sliding_attention"} if window < longest else kinds
    if kinds != {"full_attention"}:
        raise WeightsError(
            f"model_type {text.get('model_type')!r} has layers of kind {sorted(kinds)}; the local engine serves full attention only, "
            "for others name engines of SGLang (TRIFORGE_POLICY_ENGINES and the like, docs/operate.md#sglang-and-gpus)"
        )
