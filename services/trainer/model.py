"""A causal language model as the learner uses it: log-probabilities of chosen tokens, nothing else is materialised."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

from services.trainer.batches import TokenBatch
from services.trainer.weights import load_tensors
from triforge.errors import WeightsError

_CHUNK = (
    1 << 24
)  # logits held at once (64 MiB of float32); longer batches are computed in pieces and again backwards
_PROBE = 6


class ScoringModel:
    """A transformers model, float32, that scores tokens.

    Args:
        model: the causal model; its log-probabilities are those of `logits / temperature` over the full softmax.
        chunk: logits held at once; longer batches are computed in pieces, and again on the way back.
    """

    def __init__(self, model: Any, *, chunk: int = _CHUNK) -> None:
        self.module: nn.Module = model
        self._model = model
        self._body = model.base_model
        self._head = model.get_output_embeddings()
        self.vocabulary = int(model.config.vocab_size)
        self.device: torch.device = next(model.parameters()).device
        self._chunk = chunk
        self._whole = not self._head_is_all()

    @staticmethod
    def load(
        folder: Path, device: torch.device | None = None, *, chunk: int = _CHUNK
    ) -> ScoringModel:
        """Read a model folder into float32.

        Raises:
            WeightsError: the folder is missing, truncated, or not a causal model; the sentence says what.
        """
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"model folder {folder}: no config.json; expected a folder with config, tokenizer and safetensors"
            )
        tensor_files = sorted(folder.glob("*.safetensors"))
        if not tensor_files:
            raise WeightsError(f"model folder {folder}: no *.safetensors file")
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            with torch.random.fork_rng(devices=[]):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except (ValueError, OSError, KeyError, json.JSONDecodeError) as error:
            raise WeightsError(f"model folder {folder}: config.json: {error}") from error
        tensors = {k: v for path in tensor_files for k, v in load_tensors(path).items()}
        load_into(model, tensors, where=str(folder))
        return ScoringModel(model.to(device or torch.device("cpu")), chunk=chunk)

    def _head_is_all(self) -> bool:
        """Whether `head(last hidden state)` gives this model's logits (some families scale or cap them afterwards)."""
        if self._head is None or self._body is self._model:
            return False
        ids = torch.arange(min(_PROBE, self.vocabulary), device=self.device)[None]
        with torch.no_grad():
            hidden = self._body(input_ids=ids, use_cache=False).last_hidden_state
            whole = self._model(input_ids=ids, use_cache=False).logits
            return torch.allclose(self._head(hidden), whole, atol=1e-4, rtol=1e-4)

    def score(self, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy at each scored token.

        Args:
            batch: N scored tokens.
            temperature: the logits are divided by it.

        Returns:
            Log-probabilities [N] with gradient and entropies [N] in nats without.
        """
        if self._whole:
            logits = self._model(input_ids=batch.ids, use_cache=False).logits
            picked = logits.reshape(-1, logits.shape[-1])[batch.predict]
            return _score_logits(picked, batch.targets, temperature)
        hidden = self._body(input_ids=batch.ids, use_cache=False).last_hidden_state
        picked = hidden.reshape(-1, hidden.shape[-1])[batch.predict]
        size = max(1, self._chunk // self.vocabulary)
        if len(picked) <= size:
            return _score_logits(self._head(picked), batch.targets, temperature)
        parts = [
            checkpoint(self._piece, part, targets, temperature, use_reentrant=False)
            for part, targets in zip(
                torch.split(picked, size), torch.split(batch.targets, size), strict=True
            )
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _piece(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return _score_logits(self._head(hidden), targets, temperature)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, tied ones once."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def freeze(self) -> ScoringModel:
        """Mark the weights as never trained."""
        self.module.requires_grad_(False)
        return self

    def frozen_copy(self) -> ScoringModel:
        """The same weights, never trained."""
        return ScoringModel(copy.deepcopy(self._model), chunk=self._chunk).freeze()


def _score_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    logprobs = F.log_softmax(scaled, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def load_into(model: nn.Module, tensors: dict[str, Tensor], *, where: str) -> None:
    """Copy tensors into a model, every one of the right name and shape.

    Raises:
        WeightsError: one is missing, unknown, of another shape or not finite.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    needed = dict(model.named_parameters())
    persistent = set(model.state_dict())
    buffers = {n: b for n, b in model.named_buffers() if n in persistent}
    known: dict[str, Tensor] = {**named, **buffers}
    missing = sorted((set(needed) | set(buffers)) - set(tensors))
    unknown = sorted(set(tensors) - set(known))
    wrong = [
        f"{n} has shape {tuple(t.shape)}, expected {tuple(known[n].shape)}"
        for n, t in tensors.items()
        if n in known and t.shape != known[n].shape
    ]
    broken = [n for n, t in tensors.items() if not torch.isfinite(t).all()]
    for problem, names in (("missing", missing), ("unknown", unknown), ("not finite", broken)):
        if names:
            raise WeightsError(f"{where}: tensors {problem}: {', '.join(names[:5])}")
    if wrong:
        raise WeightsError(f"{where}: {'; '.join(wrong[:5])}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            known[name].copy_(tensor)
