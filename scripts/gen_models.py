"""Write docs/reference/models.md, the table of model architectures: `python -m scripts.gen_models`, some minutes.

Every causal model of the installed transformers is built small, with random weights; then the local engine and the learner
load it, with the checks that they make of every model. What cannot be built small, or looks ahead, is left out.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from scripts.gen_docs import REFERENCE
from services.local_engine.model import load_model
from services.trainer.learner.model.causal_lm import ScoringModel
from triforge.vision.image_spec import KINDS

_LARGEST: Final = 20_000_000  # parameters of a model that is tried
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers")
_SIZES: Final[dict[str, int]] = {
    "vocab_size": 96, "hidden_size": 64, "n_embd": 64, "d_model": 64, "word_embed_proj_dim": 64, "embedding_size": 64,
    "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96, "moe_intermediate_size": 32, "num_attention_heads": 4,
    "n_head": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "n_positions": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rotary_dim": 8, **dict.fromkeys(_LAYERS, 2),
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip


def small(kind: str) -> PretrainedConfig:
    """Return the default config of a kind of model with few and narrow layers, one of each sort."""
    text = CONFIG_MAPPING[kind]().get_text_config()
    given: dict[str, Any] = {n: size for n, size in _SIZES.items() if _settable(text, n)}
    sorts = list(dict.fromkeys(getattr(text, "layer_types", None) or ()))
    if sorts and _settable(text, "layer_types"):
        given |= {"layer_types": (sorts * 2)[: max(2, len(sorts))]}
        given |= {name: len(given["layer_types"]) for name in _LAYERS if hasattr(text, name)}
    return CONFIG_MAPPING[text.model_type](**given)


def _settable(config: PretrainedConfig, name: str) -> bool:
    return hasattr(config, name) and not isinstance(getattr(type(config), name, None), property)


def looks_back_only(model: Any) -> bool:
    """Whether the last token changes nothing before it: encoders, too, can be built as causal models."""
    ids = torch.arange(8).unsqueeze(0)
    other = ids.clone()
    other[0, -1] = 50
    with torch.no_grad():
        first, second = (model(input_ids=i, use_cache=False).logits[:, :-1] for i in (ids, other))
    return torch.allclose(first, second, atol=1e-4)


def tried(kind: str) -> tuple[str, str] | None:
    """Return what the local engine and the learner say of a kind of model; None if it cannot be built small or looks ahead."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = small(kind)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if size > _LARGEST:
                return None
            made = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            if not looks_back_only(made):
                return None
            made.save_pretrained(folder)
        except Exception:  # noqa: BLE001 (whatever a default config with other sizes leads to)
            return None
        return _result_of(_engine, Path(folder)), _result_of(_learner, Path(folder))


def _result_of(load: Callable[[Path], str], folder: Path) -> str:
    try:
        return load(folder)
    except Exception:  # noqa: BLE001 (whatever a model of another kind does with one token after the other)
        return "no"


def _engine(folder: Path) -> str:
    model, _ = load_model(folder)
    return "own kernel" if type(model).__name__ == "LlamaModel" else "yes"


def _learner(folder: Path) -> str:
    return "packed rows" if ScoringModel.load(folder).packs else "yes"


def rows() -> Iterator[str]:
    """Yield a line for each kind of model that either of them takes, by name."""
    for kind, name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        found = tried(kind)
        if found is not None and found != ("no", "no"):
            yield f"| `{kind}` | {name} | {found[0]} | {found[1]} |"
    yield from (f"| `{kind}` | sees images | yes | yes |" for kind in sorted(KINDS))


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    head = ["| `model_type` | class | local engine | learner |", "|---|---|---|---|"]
    lines = [f"transformers {transformers.__version__}:", "", *head, *rows()]
    REFERENCE.mkdir(exist_ok=True)
    (REFERENCE / "models.md").write_text("\n".join(["# Models", "", *lines, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
