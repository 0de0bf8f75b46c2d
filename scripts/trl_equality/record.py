"""Ask TRL: the loss and the gradient of every case, as JSON. Runs in TRL's own environment and imports nothing of ours.

python record.py OUT.json
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).parent))

import cases
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer


def tiny(*, reference: bool) -> Qwen2ForCausalLM:
    """Return the tiny model, or its reference, with fixed weights."""
    made = Qwen2ForCausalLM(Qwen2Config(**cases.CONFIG))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            values = cases.weight(name, tuple(parameter.shape), reference=reference)
            parameter.copy_(torch.from_numpy(values))
    return made


def model(folder: str) -> Qwen2ForCausalLM:
    """Return the tiny model from a folder, as people give it to TRL."""
    tiny(reference=False).save_pretrained(folder)
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)


def tokenizer() -> PreTrainedTokenizerFast:
    """One that the trainer's constructor is content with; no text is ever read."""
    names = ["<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, cases.CONFIG["vocab_size"]))]
    backend = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<pad>"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        bos_token="<bos>",  # noqa: S106
    )


def trainer(folder: str, case: dict[str, Any]) -> GRPOTrainer:
    loss = case.get("loss_type", "grpo")
    # TRL's CISPO takes the cap itself where the others take the width of the clip.
    high = 1.0 + cases.CLIP["high"] if loss == "cispo" else cases.CLIP["high"]
    rows = len(cases.LENGTHS)
    args = GRPOConfig(
        output_dir=folder, report_to=[], use_cpu=True, bf16=False, disable_dropout=True,
        per_device_train_batch_size=rows, num_generations=rows, gradient_accumulation_steps=1,
        gradient_checkpointing=False, max_completion_length=cases.MAX_COMPLETION, loss_type=loss,
        importance_sampling_level=case.get("level", "token"), epsilon=cases.CLIP["low"],
        epsilon_high=high, beta=case.get("beta", 0.0),
        use_bias_correction_kl=case.get("weighted", False), entropy_coef=case.get("entropy", 0.0),
        off_policy_mask_threshold=case.get("opsm"), temperature=case.get("temperature", 1.0),
    )  # fmt: skip
    found = GRPOTrainer(
        model=model(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "w3"}]),
        processing_class=tokenizer(),
    )
    found.model.train()
    found.current_gradient_accumulation_steps = 1
    return found


def inputs(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the batch as TRL lays it out: prompts padded on the left, completions on the right."""
    rows = cases.batch()
    left = max(len(row["prompt"]) for row in rows)
    right = max(len(row["completion"]) for row in rows)

    def padded(name: str, width: int, *, front: bool, filler: float) -> torch.Tensor:
        lines = []
        for row in rows:
            gap = [filler] * (width - len(row[name]))
            lines.append(gap + row[name] if front else row[name] + gap)
        return torch.tensor(lines)

    def mask(name: str, width: int, *, front: bool) -> torch.Tensor:
        ones = [[1] * len(row[name]) for row in rows]
        gaps = [[0] * (width - len(row)) for row in ones]
        return torch.tensor([g + o if front else o + g for o, g in zip(ones, gaps, strict=True)])

    found = {
        "prompt_ids": padded("prompt", left, front=True, filler=0),
        "prompt_mask": mask("prompt", left, front=True),
        "completion_ids": padded("completion", right, front=False, filler=0),
        "completion_mask": mask("completion", right, front=False),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": torch.tensor(float(sum(len(row["completion"]) for row in rows))),
    }
    if not case.get("on_policy"):
        found["old_per_token_logps"] = padded("old", right, front=False, filler=0.0)
    return found


@torch.no_grad()
def reference(given: dict[str, torch.Tensor], temperature: float) -> torch.Tensor:
    """Return the reference model's log-probabilities of the completions."""
    ids = torch.cat([given["prompt_ids"], given["completion_ids"]], dim=1)
    mask = torch.cat([given["prompt_mask"], given["completion_mask"]], dim=1)
    logits = tiny(reference=True).eval()(input_ids=ids, attention_mask=mask).logits
    wanted = given["completion_ids"]
    scores = (logits[:, -wanted.size(1) - 1 : -1] / temperature).log_softmax(-1)
    return scores.gather(-1, wanted[..., None])[..., 0]


def main(out: Path) -> None:
    results: dict[str, Any] = {"trl": version("trl"), "torch": torch.__version__, "cases": {}}
    for name, case in cases.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            asked = trainer(folder, case)
            given = inputs(case)
            given["ref_per_token_logps"] = reference(given, case.get("temperature", 1.0))
            loss = asked._compute_loss(asked.model, given)
            loss.backward()
            gradient = {
                key: [float(f"{value:.9g}") for value in parameter.grad.flatten().tolist()]
                for key, parameter in sorted(asked.model.named_parameters())
            }
        results["cases"][name] = {"loss": float(loss.detach()), "gradient": gradient}
    out.write_text(json.dumps(results, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
