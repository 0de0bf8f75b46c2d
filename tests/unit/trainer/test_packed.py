"""Packed rows give what plain rows give, forwards and backwards, whatever shares a forward pass with them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from services.trainer.learner.model import packed_attention
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.logprobs import chosen_logprobs
from services.trainer.learner.model.packed_attention import Layout, blockwise, tree_attention
from services.trainer.learner.model.token_batches import Sequences
from triforge.algorithms.prefix_tree import pack

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def build(config: PreTrainedConfig, **options: int) -> ScoringModel:
    torch.manual_seed(3)
    return ScoringModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), **options)


def family(seed: int = 0) -> Sequences:
    """Two prompts with five and four answers each, one row that is the beginning of another, and a lone one."""
    draw = np.random.default_rng(seed)
    rows = []
    for votes in (5, 4):
        prompt = draw.integers(0, 50, 30)
        rows += [np.append(prompt, draw.integers(0, 50, 1 + 4 * n)) for n in range(votes)]
    rows += [rows[0][:20], draw.integers(0, 50, 9)]
    return Sequences(rows, [np.unique(draw.integers(1, len(r), 6)) for r in rows])


def gradients(
    model: ScoringModel, sequences: Sequences, plan: list[list[int]], *, packed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores by flat cell, and the gradient of a weighted sum of log-probabilities and entropies, as one vector."""
    scores = torch.zeros(sequences.total)
    pull = torch.linspace(-1, 1, sequences.total)
    for p in model.parameters().values():
        p.grad = None
    for rows in plan:
        batch = sequences.batch(rows, CPU, packed=packed)
        found, entropy = model.score(batch, 0.7)
        scores[batch.cells] = found.detach()
        (pull[batch.cells] * (found + 0.3 * entropy)).sum().backward()
    return scores, torch.cat([p.grad.flatten() for p in model.parameters().values()])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config])
@pytest.mark.parametrize("options", [{}, {"chunk": 400}])
def test_packing_order_and_sharing_change_neither_scores_nor_gradients(
    config: Callable[..., PreTrainedConfig], options: dict[str, int]
):
    model = build(config(**SMALL), **options)
    sequences = family()
    rows = list(range(len(sequences.counts)))
    alone = gradients(model, sequences, [[r] for r in rows], packed=False)
    assert model.packs
    for plan in ([rows], [rows[::-1]], [rows[::2], rows[1::2]], [[r] for r in rows]):
        scores, gradient = gradients(model, sequences, plan, packed=True)
        assert float((scores - alone[0]).abs().max()) < 1e-5
        assert relative(gradient, alone[1]) < 1e-5


def test_activations_that_are_computed_again_are_the_same():
    model, sequences = build(LlamaConfig(**SMALL)), family()
    rows = list(range(len(sequences.counts)))
    kept = gradients(model, sequences, [rows], packed=True)
    model.compute(checkpointing=True)
    again = gradients(model, sequences, [rows], packed=True)
    assert torch.equal(kept[0], again[0])
    assert relative(again[1], kept[1]) < 1e-6


def test_bfloat16_is_near_and_leaves_weights_and_scores_in_float32():
    model, sequences = build(LlamaConfig(**SMALL)), family()
    rows = list(range(len(sequences.counts)))
    exact = gradients(model, sequences, [rows], packed=True)
    model.compute(precision="bfloat16")
    found, gradient = gradients(model, sequences, [rows], packed=True)
    assert found.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters().values())
    assert 0 < float((found - exact[0]).abs().max()) < 0.05
    assert relative(gradient, exact[1]) < 0.05


def test_half_precision_keeps_no_copies_of_weights_until_a_pass_has_ended():
    """They would be the whole model again, also where recomputing or sharding leaves one block at a time."""
    model, sequences = build(LlamaConfig(**SMALL)), family()
    model.compute(precision="bfloat16", checkpointing=True)
    kept: list[bool] = []
    model.module.model.layers[0].register_forward_hook(
        lambda *_: kept.append(
            torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
        )
    )
    model.score(model.batch(sequences, [0, 1]), 1.0)
    assert kept == [False]


def test_a_kernel_of_half_precision_that_masks_from_the_other_corner_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Variable-length kernels before flash_attn 2.1: right for rows that share nothing."""
    model = build(LlamaConfig(**SMALL, initializer_range=1.0))
    real = packed_attention.tree_attention

    def early(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout, scale: float):
        if value.dtype == torch.float32:
            return real(query, key, value, layout, scale)
        out = torch.zeros_like(query)
        for block in layout.blocks:
            above = [b for b in layout.blocks if b.end <= block.start < b.last]
            seen = torch.cat([torch.arange(b.start, b.end) for b in (*above, block)])
            own = slice(block.start, block.end)
            out[:, :, own] = torch.nn.functional.scaled_dot_product_attention(
                query[:, :, own], key[:, :, seen], value[:, :, seen], scale=scale, enable_gqa=True,
                attn_mask=torch.ones(block.end - block.start, len(seen), dtype=torch.bool).tril(),
            )  # fmt: skip
        return out

    monkeypatch.setattr(packed_attention, "tree_attention", early)
    model.compute(precision="float32")
    assert model.packs
    with caplog.at_level("WARNING"):
        model.compute(precision="bfloat16")
    assert not model.packs
    assert "rows are not packed" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=16),
        Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=1.0),
    ],
)
def test_a_model_with_another_kind_of_attention_is_given_plain_rows(config: PreTrainedConfig):
    model, sequences = build(config), family()
    rows = list(range(len(sequences.counts)))
    assert not model.packs
    alone = gradients(model, sequences, [[r] for r in rows], packed=False)
    together = gradients(model, sequences, model.passes(sequences, rows, 400), packed=False)
    assert relative(together[1], alone[1]) < 1e-5


def test_dropout_of_a_model_is_off():
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50}
    model, sequences = build(GPT2Config(**shape, attn_pdrop=0.5, resid_pdrop=0.5)), family()
    batch = model.batch(sequences, [0, 5])
    with torch.no_grad():
        assert torch.equal(model.score(batch, 1.0)[0], model.score(batch, 1.0)[0])


def test_rows_with_inputs_of_their_own_are_not_packed_and_carry_them():
    one = {"pixel_values": torch.ones(2, 3)}
    rows = [np.arange(5), np.arange(6), np.arange(4)]
    sequences = Sequences(rows, [np.array([2, 3])] * 3, [one, {}, one])
    batch = build(LlamaConfig(**SMALL)).batch(sequences, [0, 1, 2])
    assert batch.layout is None
    assert batch.ids.shape == (3, 8)
    assert batch.inputs["pixel_values"].shape == (4, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_parts_is_attention_to_all_that_is_seen(dtype: torch.dtype):
    torch.manual_seed(0)
    sequences = family()
    packing = pack([sequences.seen(r) for r in range(len(sequences.counts))], pad_to=8)
    layout = Layout.of(packing.blocks, CPU)
    cells = len(packing.ids)
    assert any(b.last > b.end for b in packing.blocks)
    base = [torch.randn(1, heads, cells, 8, dtype=dtype) for heads in (4, 2, 2)]
    results = []
    for kernel in (tree_attention, blockwise):
        qkv = [t.clone().requires_grad_() for t in base]
        out = kernel(*qkv, layout, 0.3)
        (out * torch.linspace(-1, 1, cells)[:, None].to(dtype)).sum().backward()
        results.append([out.detach(), *(t.grad for t in qkv)])
    near = 1e-5 if dtype == torch.float32 else 0.06
    for found, wanted in zip(*results, strict=True):
        assert relative(found.float(), wanted.float()) < near


@pytest.mark.parametrize("piece", [1, 3, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_log_probabilities_in_pieces_have_the_values_and_gradients_of_a_softmax(
    piece: int, bias: bool
):
    torch.manual_seed(1)
    layer = torch.nn.Linear(5, 11, bias=bias)
    hidden = torch.randn(7, 5, requires_grad=True)
    cells, targets = torch.tensor([6, 0, 0, 0, 3, 2]), torch.tensor([1, 4, 4, 10, 0, 2])
    pull, push = torch.randn(6), torch.randn(6)

    def run(logp: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        inputs = [hidden, *layer.parameters()]
        loss = (pull * logp).sum() + (push * entropy).sum()
        return [logp, entropy, *torch.autograd.grad(loss, inputs)]

    dist = torch.distributions.Categorical(logits=layer(hidden)[cells] / 1.3)
    wanted = run(dist.log_prob(targets), dist.entropy())
    found = run(*chosen_logprobs(hidden, layer, cells, targets, temperature=1.3, piece=piece))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_logits_never_exist_for_more_than_a_piece(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    real = torch.log_softmax
    model, sequences = build(LlamaConfig(**SMALL), chunk=4 * 50), family()

    def noted(z: torch.Tensor, dim: int) -> torch.Tensor:
        seen.append(len(z))
        return real(z, dim)

    monkeypatch.setattr(torch, "log_softmax", noted)
    model.score(sequences.batch([0, 1, 2, 3], CPU, packed=True), 1.0)
    assert max(seen) == 4
    assert sum(seen) <= sum(sequences.counts[:4])
