from __future__ import annotations

from typing import Any

import pytest
import torch

from services.local_engine.request import SamplingParams
from services.local_engine.sampler import rising, sample, shifted, stream_seed

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0]])


def frequencies(
    count: int = 20000, bans: list[int] | None = None, **settings: float
) -> list[float]:
    """Shares of the tokens over `count` rows with different seeds."""
    params = [SamplingParams(**settings)] * count  # type: ignore[arg-type]
    seeds = [stream_seed(7, row) for row in range(count)]
    banned = torch.zeros(5, dtype=torch.bool)
    banned[bans or []] = True
    masks = [(row, banned) for row in range(count)] if bans else []
    ids = sample(LOGITS.expand(count, -1), params, seeds, [0] * count, masks).ids
    return (torch.bincount(ids, minlength=5) / count).tolist()


def renormalised(keep: list[int], temperature: float = 1.0) -> list[float]:
    p = torch.softmax(LOGITS[0] / temperature, -1)
    mask = torch.zeros(5)
    mask[keep] = 1.0
    return (p * mask / (p * mask).sum()).tolist()


@pytest.mark.parametrize(
    ("settings", "keep"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [0, 1]),
        # shares are 0.60, 0.22, 0.13, 0.03, 0.004
        ({"top_p": 0.7}, [0, 1]),
        ({"top_p": 0.59}, [0]),
        ({"top_p": 0.9, "top_k": 2}, [0, 1]),
    ],
)
def test_filters_keep_exactly_the_likeliest_tokens(
    settings: dict[str, float], keep: list[int]
) -> None:
    expected = renormalised(keep, settings.get("temperature", 1.0))
    assert frequencies(**settings) == pytest.approx(expected, abs=0.012)


def test_banned_tokens_are_never_sampled_but_keep_their_share_of_the_logprobs() -> None:
    assert frequencies(bans=[0, 2]) == pytest.approx(renormalised([1, 3, 4]), abs=0.012)
    banned = torch.tensor([True, False, False, False, False])
    sampled = sample(LOGITS, [SamplingParams(temperature=0.0)], [1], [0], [(0, banned)])
    assert sampled.ids.tolist() == [1]
    assert sampled.logprobs.item() == pytest.approx(torch.log_softmax(LOGITS[0], -1)[1].item())


def test_excluded_tokens_are_not_drawn_from_sums_of_a_gpu_that_are_off_by_a_rounding() -> None:
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.0, 0.5, 0.0, 0.25, 0.0]])
    ulp = 2**-24
    off = torch.tensor([[ulp, 0.25, 0.25 + ulp, 0.25, 0.75, 0.75 - ulp, 1.0, 1.0 + 2 * ulp]])
    found = rising(off, weights)
    edges = torch.cat((off[0], off[0] * (1 - ulp), torch.linspace(0.0, 0.999, 50)))
    for edge in edges[edges < found[0, -1]].tolist():
        ids = torch.searchsorted(found, torch.tensor([[edge]]), right=True)
        assert int(ids) in (1, 4, 6), edge
    assert found.tolist() == [[0.0, 0.25, 0.25, 0.25, 0.75, 0.75, 1.0, 1.0]]


def test_logprobs_are_taken_before_any_filter() -> None:
    sampled = sample(LOGITS, [SamplingParams(temperature=2.0, top_p=0.1, top_k=1)], [1], [0])
    assert sampled.logprobs.item() == pytest.approx(torch.log_softmax(LOGITS[0] / 2, -1)[0].item())


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    settings: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 100.0}]
    params = [SamplingParams(**row) for row in settings]
    logits = LOGITS.expand(3, -1)
    seen = [sample(logits, params, [1, 2, 3], [n] * 3).ids.tolist() for n in range(40)]
    assert {row[0] for row in seen} == {0}
    assert {row[1] for row in seen} == {0}
    assert {row[2] for row in seen} == {0, 1, 2, 3, 4}


def test_samples_of_one_seed_differ_and_are_not_another_seeds_samples() -> None:
    seeds = {stream_seed(seed, sample) for seed in range(-20, 20) for sample in range(20)}
    assert len(seeds) == 800


def test_biases_and_penalties_shift_the_logits_of_their_row_alone() -> None:
    logits = LOGITS.expand(2, -1)
    params = [
        SamplingParams(logit_bias={"4": 3.5}, frequency_penalty=0.5, presence_penalty=0.25),
        SamplingParams(),
    ]
    found = shifted(logits, params, [[0, 0, 1], [0]])
    assert found[0].tolist() == pytest.approx([0.75, 0.25, 0.5, -1.0, 0.5])
    assert torch.equal(found[1], LOGITS[0])
    assert torch.equal(logits[0], LOGITS[0])
    assert shifted(logits, [SamplingParams()] * 2, [[0], [0]]) is logits
