"""A causal language model as the learner uses it: log-probabilities of chosen tokens, nothing else is materialised."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_layers import GradientCheckpointingLayer

from services.trainer.learner.model.logprobs import chosen_logprobs
from services.trainer.learner.model.packed_attention import NAME as PACKED
from services.trainer.learner.model.token_batches import Sequences, TokenBatch, passes
from services.trainer.learner.model.vision import VisionBody
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.step_cost import Shape
from services.trainer.learner.weights.tensors import (
    CPU,
    Shares,
    in_folder,
    load_tensors,
    model_files,
    model_tensors,
    publish_model,
)
from triforge.chat_template import read_json
from triforge.errors import ConfigError, TrainerError, WeightsError
from triforge.store.images import ImageStore
from triforge.store.model_config import demand_head, demand_known
from triforge.store.tensor_files import demand_layers, demand_numbers, read_folder, weight_files
from triforge.vision.image_spec import ImageSpec

log = logging.getLogger(__name__)

# Logits held at once, as numbers of float32; longer batches are computed in pieces, and again on the way back. A GPU has the
# memory for 512 MiB of them, and works little on less.
_CHUNKS = {"cpu": 1 << 24, "cuda": 1 << 27}
_PROBE = 40
_CLOSE = 1e-4  # how far the packed path may be from the plain one on the probe
_HALF = 0.05  # the same in half precision, on average, on top of its own rounding error
_REFUSALS = (ValueError, TypeError, RuntimeError, IndexError, AttributeError)

Precision = Literal["auto", "float32", "bfloat16"]


class Weights(NamedTuple):
    """Tensors of a version, and its probe: a prompt with the model's log-probabilities."""

    tensors: dict[str, Tensor]
    probe: dict[str, Any]


class Scorer(nn.Module):
    """From a batch to log-probabilities and entropies, in one module: what is sharded as a whole.

    `body` gives last hidden states of the transformers model, `head` logits from them; with `whole` only the model itself
    knows its logits (some families scale or cap them afterwards). `dtype` is of matrix products and attention; the weights
    stay float32. It may change between two passes.
    """

    def __init__(self, model: Any, body: Any, head: Any, *, whole: bool, chunk: int) -> None:
        super().__init__()
        self.model, self.dtype, self._whole = model, torch.float32, whole
        self._parts = (body, head)  # parts of `model`, hidden from the list of submodules
        self._chunk, self._vocabulary = chunk, int(model.config.get_text_config().vocab_size)

    def forward(self, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """See `ScoringModel.score`."""
        body, head = self._parts
        inputs = batch.arguments()
        with self._autocast(batch.ids.device):
            if self._whole:
                logits = self.model(**inputs).logits
                picked = logits.reshape(-1, logits.shape[-1])[batch.predict]
                return _score_logits(picked, batch.targets, temperature)
            hidden = body(**inputs).last_hidden_state
        hidden = hidden.reshape(-1, hidden.shape[-1])
        if type(head) is nn.Linear:
            return chosen_logprobs(
                hidden, head, batch.predict, batch.targets,
                temperature=temperature, piece=self._piece(hidden.device), dtype=self.dtype,
            )  # fmt: skip
        return self._by_pieces(hidden[batch.predict], batch.targets, temperature)

    def _by_pieces(
        self, picked: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Through an output layer of any kind."""

        def one(hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            with self._autocast(hidden.device):
                return _score_logits(self._parts[1](hidden), wanted, temperature)

        size = self._piece(picked.device)
        pairs = zip(torch.split(picked, size), torch.split(targets, size), strict=True)
        parts = [checkpoint(one, part, wanted, use_reentrant=False) for part, wanted in pairs]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _piece(self, device: torch.device) -> int:
        chunk = self._chunk or _CHUNKS.get(device.type, _CHUNKS["cpu"])
        return max(1, chunk // self._vocabulary)

    def _autocast(self, device: torch.device) -> Any:
        narrow = self.dtype != torch.float32
        # A pass uses each weight once: kept copies would be the whole model again, sharded or not.
        return torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=narrow, cache_enabled=False
        )


class ScoringModel:
    """A transformers model, float32, that scores tokens.

    Args:
        model: the causal model; its log-probabilities are those of `logits / temperature` over the full softmax.
        chunk: logits held at once; 0 is by the device.
        image_spec: how the model sees images; its rows are not packed.
        images: where the pixels of the rows are, for a model that sees.

    Attributes:
        shape: what a pass costs.
        packs: whether the model takes packed rows: its attention can be replaced and looks at all that comes before. It
            was tried, and gave what plain rows give.
    """

    def __init__(
        self,
        model: Any,
        *,
        chunk: int = 0,
        image_spec: ImageSpec | None = None,
        images: ImageStore | None = None,
    ) -> None:
        self.image_spec, self.images = image_spec, images
        self.shape = Shape.of(model)
        self.module: nn.Module = model.eval()  # no dropout: a sample's log-probability is a number
        self._model = model
        self._text = model.config.get_text_config()
        self.vocabulary = int(self._text.vocab_size)
        body, head = model.base_model, model.get_output_embeddings()
        whole = not _head_is_all(model, body, head, self._probe())
        if image_spec is not None and whole:
            raise WeightsError(
                f"{type(model).__name__}: expected logits that are the output layer's, for a model that sees"
            )
        body = body if image_spec is None else VisionBody(body, image_spec, images)
        self.scorer = Scorer(model, body, head, whole=whole, chunk=chunk)
        self.packs = image_spec is None and self._packs()

    @property
    def device(self) -> torch.device:
        """Where it computes; shares of it are elsewhere than what was loaded."""
        return next(self.module.parameters()).device

    @staticmethod
    def load(
        folder: Path,
        device: torch.device | None = CPU,
        *,
        chunk: int = 0,
        images: ImageStore | None = None,
        tensors: dict[str, Tensor] | None = None,
    ) -> ScoringModel:
        """Read a model folder into float32; `tensors` are what its own were rounded from.

        Without a `device` it stays on the CPU, and what is float32 already stays in the files' pages, which processes share.

        Raises:
            WeightsError: the folder is missing, truncated, or not a causal model; the sentence says what.
        """
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"model folder {folder}: no config.json; expected a folder with config, tokenizer and safetensors"
            )
        tensor_files = weight_files(folder)
        if not tensor_files:
            raise WeightsError(f"model folder {folder}: no *.safetensors file")
        config = read_json(folder / "config.json")
        demand_known(folder, config)
        if tensors is None:
            tensors = {k: v for path in tensor_files for k, v in load_tensors(path).items()}
        demand_layers(folder, config, len(tensors))
        demand_head(folder, config, read_folder(folder))
        image_spec = ImageSpec.of_folder(folder)
        held = sum(tensor.numel() for tensor in tensors.values())
        model = _build(folder, held, seeing=image_spec is not None, shapes=device is None)
        if device is not None and tensors.keys() <= model.state_dict().keys():
            load_into(model, tensors, where=str(folder))
        else:
            model = _converted(model, tensors, where=str(folder))
        model = model.to(device or CPU)
        return ScoringModel(model, chunk=chunk, image_spec=image_spec, images=images)

    # ---- passes ----

    def passes(
        self, sequences: Sequences, rows: Sequence[int], token_budget: int, *, ranks: int = 1
    ) -> list[list[int]]:
        """Split sequences into forward passes as this model takes them, for so many ranks; see `token_batches.passes`."""
        packed = self.packs and sequences.plain
        return passes(
            rows, sequences, token_budget, packed=packed, ranks=ranks, price=self.shape.price
        )

    def batch(self, sequences: Sequences, rows: Sequence[int]) -> TokenBatch:
        """Return some sequences as tensors for this model. Raises TrainerError: images for a model without vision."""
        batch = sequences.batch(rows, self.device, packed=self.packs and sequences.plain)
        if self.image_spec is None and "images" in batch.inputs:
            raise TrainerError(
                "rows hold images, but what is trained sees none; expected a model that sees, or rows of text"
            )
        return batch

    def score(self, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (nats) at each of N scored tokens, float32 [N] each, of `logits / temperature`."""
        found: tuple[Tensor, Tensor] = self.scorer(batch, temperature)
        return found

    # ---- how passes are computed ----

    @property
    def dtype(self) -> torch.dtype:
        """The type of matrix products and attention."""
        return self.scorer.dtype

    def compute(self, *, precision: Precision = "auto", checkpointing: bool = False) -> None:
        """Say how the passes from now on are computed.

        Args:
            precision: of matrix products and attention; `auto` is bfloat16 on a GPU and float32 elsewhere.
            checkpointing: keep only what goes into each block of layers, and compute the blocks again on the way back.
        """
        narrow = precision == "bfloat16" or (precision == "auto" and self.device.type == "cuda")
        dtype = torch.bfloat16 if narrow else torch.float32
        if dtype != self.scorer.dtype:
            self.scorer.dtype = dtype
            self.packs = self.packs and (not narrow or self._still_packs())
        recompute_blocks(self.module, on=checkpointing)

    def _probe(self) -> Tensor:
        longest = getattr(self._text, "max_position_embeddings", _PROBE)
        size = max(1, min(_PROBE, longest or _PROBE))
        return torch.arange(size, device=self.device) % self.vocabulary

    @torch.no_grad()
    def _probed(self, *, packed: bool) -> Tensor:
        """Log-probabilities of three short rows whose first half is alike, so that half of all tokens look back at it."""
        probe = self._probe().cpu().numpy()
        trunk, own = np.split(probe, [len(probe) // 2])
        rows = [probe, *(np.append(trunk, branch) for branch in (own[::-1], own[1:]))]
        three = Sequences(rows, [np.arange(1, len(row)) for row in rows])
        return self.score(three.batch([0, 1, 2], self.device, packed=packed), 1.0)[0]

    def _packs(self) -> bool:
        """Switch the model to packed attention, unless its attention is of another kind."""
        kinds = set(getattr(self._text, "layer_types", None) or ())
        windowed = getattr(self._text, "sliding_window", None) is not None and not kinds
        if windowed or kinds - {"full_attention"}:
            return False
        before = self._model.config._attn_implementation
        try:
            plain = self._probed(packed=False)
            self._model.set_attn_implementation(PACKED)
            if torch.allclose(plain, self._probed(packed=True), atol=_CLOSE, rtol=_CLOSE):
                return True
        except _REFUSALS as error:
            log.info("rows are not packed: %s", error)
        self._model.set_attn_implementation(before)
        return False

    def _still_packs(self) -> bool:
        """Whether packed rows are right in half precision too, where another kernel may compute them.

        Both ways round. They may lie as far apart as plain rows lie from those in float32, which in large models is more than
        a tenth of a nat.
        """
        narrow = self.scorer.dtype
        try:
            packed, plain = self._probed(packed=True), self._probed(packed=False)
            self.scorer.dtype = torch.float32
            rounding = float((plain - self._probed(packed=False)).abs().mean())
        except _REFUSALS as error:
            log.warning("rows are not packed: %s", error)
            return False
        finally:
            self.scorer.dtype = narrow
        apart = float((packed - plain).abs().mean())
        right = apart < _HALF + rounding
        if not right:
            log.warning(
                "rows are not packed: they come out %.3g nats apart a token, where half precision is %.3g off",
                apart,
                rounding,
            )
        return right

    # ---- weights ----

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, tied ones once."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Log-probability of each id of a text but the first, given those before it. All ranks of a sharded model ask together."""
        if any(isinstance(p, DTensor) for p in self.parameters().values()):
            probe = Sequences([np.asarray(ids)], [np.arange(1, len(ids))])
            return [float(x) for x in self.score(self.batch(probe, [0]), 1.0)[0]]
        row = torch.tensor([list(ids)], device=self.device)
        scores = self.module(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1)
        found: list[float] = scores[:-1].gather(-1, row[0, 1:, None])[:, 0].tolist()
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a version. A collective call: all ranks of a sharded model make it."""
        return model_tensors(self.module)

    def weights(self, sample: Sequence[int]) -> Weights:
        """Return the weights to publish; `sample` is the probe's prompt. A collective call.

        The probe leaves out ids of images: engines score it without pixels.
        """
        spec = self.image_spec
        ids = [i for i in sample if spec is None or i not in (spec.image, spec.video)]
        return Weights(self.tensors(), {"ids": ids, "logprobs": self.logprobs(ids)})

    def files(self, weights: Weights, ranks: Ranks | None, dtype: torch.dtype) -> Shares:
        """Weights as a version holds them."""
        return model_files(self.module, weights.tensors, ranks, dtype)

    def publish(
        self,
        target: Path,
        about: Mapping[str, Any],
        weights: Weights,
        initial: Path,
        ranks: Ranks | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> str:
        """Write weights as a version, atomically, with the other files of the folder `initial`; return the manifest's digest.

        Raises:
            WeightsError: the folder exists.
            StorageError: disk full or no permission.
        """
        files = self.files(weights, ranks, dtype)
        return publish_model(files, initial, target, about, probe=weights.probe)


def _build(folder: Path, held: int, *, seeing: bool, shapes: bool) -> Any:
    """Build a model for a folder; check the `shapes` of its tensors before memory is allocated."""
    kind = AutoModelForImageTextToText if seeing else AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.random.fork_rng(devices=[]):
            with torch.device("meta"):
                found = kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
            demand_numbers(folder, sum(p.numel() for p in found.parameters()), held)
            if shapes:
                return found
            return kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except WeightsError:
        raise
    except Exception as error:  # whatever a field of the wrong type leads to
        raise WeightsError(f"model folder {folder}: config.json: {error}") from error


def recompute_blocks(model: nn.Module, *, on: bool) -> None:
    """Say whether a model's blocks of layers are computed again on the way back, to save memory.

    Raises ConfigError: they are to be, and it has none that can.
    """
    blocks = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if on and not blocks:
        raise ConfigError(
            f"trainer.*.activation_checkpointing: {type(model).__name__} has no blocks that can be computed again"
        )
    for block in blocks:
        block.gradient_checkpointing = on
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        block.training = on  # the block alone: what is in it stays in the state without dropout


def _head_is_all(model: Any, body: Any, head: Any, probe: Tensor) -> bool:
    """Whether `head(last hidden state)` gives this model's logits (some families scale or cap them afterwards)."""
    if head is None or body is model:
        return False
    with torch.no_grad():
        hidden = body(input_ids=probe[None], use_cache=False).last_hidden_state
        whole = model(input_ids=probe[None], use_cache=False).logits
        return torch.allclose(head(hidden), whole, atol=_CLOSE, rtol=_CLOSE)


def _score_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    logprobs = F.log_softmax(scaled, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def load_into(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Copy tensors into a model. Raises WeightsError: see `copy_tensors`."""
    persistent = set(model.state_dict())
    buffers = {n: b for n, b in model.named_buffers() if n in persistent}
    tied: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    needed = {name for name, _ in model.named_parameters()} | set(buffers)
    copy_tensors(tensors, tied | buffers, needed, where=where)


def _converted(model: Any, tensors: dict[str, Tensor], *, where: str) -> Any:
    """Such a model with these tensors, which transformers converts: a folder may have a tensor an expert, the module one of all.

    Raises:
        WeightsError: they are not all of such a model, or could not be written as they were read.
    """
    try:
        made, info = type(model).from_pretrained(
            None, config=model.config, state_dict=tensors, dtype=torch.float32, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    except _REFUSALS as error:
        raise WeightsError(f"{where}: {error}") from error
    shapes = {n: torch.empty_like(t, device="meta") for n, t in model_tensors(made).items()}
    written = {n for name, shape in shapes.items() for n in in_folder(made, {name: shape})}
    broken = {n for n, t in tensors.items() if not torch.isfinite(t).all()}
    unwritten = written - tensors.keys()
    for problem, names in (
        ("missing", info["missing_keys"]), ("unknown", info["unexpected_keys"]), ("not finite", broken),
        ("that would be written under other names", unwritten),
    ):  # fmt: skip
        if names:
            raise WeightsError(f"{where}: tensors {problem}: {', '.join(sorted(names)[:5])}")
    return made


@torch.no_grad()
def copy_tensors(
    tensors: Mapping[str, Tensor], known: Mapping[str, Tensor], needed: set[str], *, where: str
) -> None:
    """Copy tensors of a file into those of a model.

    Raises:
        WeightsError: one is missing, unknown, of another shape or not finite.
    """
    wrong = [
        f"{n} has shape {tuple(t.shape)}, expected {tuple(known[n].shape)}"
        for n, t in tensors.items()
        if n in known and t.shape != known[n].shape
    ]
    broken = [n for n, t in tensors.items() if not torch.isfinite(t).all()]
    missing, unknown = sorted(needed - set(tensors)), sorted(set(tensors) - set(known))
    for problem, names in (("missing", missing), ("unknown", unknown), ("not finite", broken)):
        if names:
            raise WeightsError(f"{where}: tensors {problem}: {', '.join(names[:5])}")
    if wrong:
        raise WeightsError(f"{where}: {'; '.join(wrong[:5])}")
    for name, tensor in tensors.items():
        known[name].copy_(tensor)
