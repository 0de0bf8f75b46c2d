from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.local_engine.request import Prompt, SamplingParams
from services.local_engine.scheduler import Limits
from services.local_engine.sequence import Sequence
from tests.unit.local_engine.models import (
    build_folder,
    new_scheduler,
    new_sequence,
    plain_logprobs,
    plain_model,
    random_prompts,
    run_all,
)

CLOSE = 1e-4


def assert_scores_match(model: Any, sequences: list[Sequence], temperature: float = 1.0) -> None:
    for seq in sequences:
        expected = plain_logprobs(model, seq.ids, seq.output, temperature)
        assert seq.logprobs == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("own_llama", [True, False])
@pytest.mark.parametrize(("kv_heads", "tied"), [(4, False), (2, True), (1, False)])
def test_logprobs_of_mixed_batch(
    tmp_path: Path, own_llama: bool, kv_heads: int, tied: bool
) -> None:
    folder = build_folder(tmp_path / "m", num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    scheduler = new_scheduler(folder, own_llama=own_llama)
    prompts = random_prompts(12, longest=60)
    done = run_all(
        scheduler, [new_sequence(p, i, max_new_tokens=3 + i) for i, p in enumerate(prompts)]
    )
    assert_scores_match(plain_model(folder), done)
    assert all(seq.finish is not None for seq in done)


def test_a_head_dim_and_a_rope_theta_of_the_config_are_used(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 777.0}
    folder = build_folder(tmp_path / "m", head_dim=12, rope_parameters=rope, rms_norm_eps=1e-2)
    done = run_all(new_scheduler(folder), [new_sequence(list(range(3, 60)), max_new_tokens=9)])
    assert_scores_match(plain_model(folder), done)


def test_temperature_scales_the_logprobs_and_greedy_reports_temperature_one(folder: Path) -> None:
    scheduler, model = new_scheduler(folder), plain_model(folder)
    warm = run_all(scheduler, [new_sequence([5, 6, 7], max_new_tokens=9, temperature=0.7)])
    assert_scores_match(model, warm, 0.7)
    greedy = run_all(scheduler, [new_sequence([5, 6, 7], max_new_tokens=9, temperature=0.0)])
    assert_scores_match(model, greedy)
    with torch.inference_mode():
        ids = torch.tensor([greedy[0].tokens])
        likeliest = model(ids).logits[0, 2:-1].argmax(-1).tolist()
    assert greedy[0].output == likeliest


def test_a_cached_prefix_is_reused_and_changes_no_logprob(folder: Path) -> None:
    scheduler, model = new_scheduler(folder), plain_model(folder)
    prompts = random_prompts(8, shared=50)
    first = run_all(scheduler, [new_sequence(prompts[0], max_new_tokens=6, ignore_eos=True)])
    later = [new_sequence(p, i, max_new_tokens=6) for i, p in enumerate(prompts[1:])]
    run_all(scheduler, later)
    next_turn = [*first[0].tokens, 40, 41, 42]
    turn = run_all(scheduler, [new_sequence(next_turn, max_new_tokens=6)])
    assert first[0].cached == 0
    assert all(seq.cached >= 50 for seq in later)
    # The last sampled token was never fed back, so its keys and values do not exist.
    assert turn[0].cached == len(first[0].tokens) - 1
    assert_scores_match(model, [*later, *turn])


def test_prompts_that_arrive_together_compute_their_shared_prefix_once(folder: Path) -> None:
    scheduler, model = new_scheduler(folder), plain_model(folder)
    prompt = list(range(3, 63))
    together = [new_sequence(prompt, i, max_new_tokens=5) for i in range(6)]
    run_all(scheduler, together)
    assert sorted(seq.cached for seq in together) == [0, 59, 59, 59, 59, 59]
    assert len({tuple(seq.output) for seq in together}) > 1
    assert_scores_match(model, together)


def test_prompt_logprobs_equal_a_plain_forward_pass_even_on_a_cached_prefix(folder: Path) -> None:
    scheduler, model = new_scheduler(folder), plain_model(folder)
    ids = list(range(3, 33))
    run_all(scheduler, [new_sequence(ids, max_new_tokens=2)])
    for start, max_new in ((0, 0), (10, 3), (29, 1)):
        prompt = Prompt(ids, SamplingParams(), f"s{start}", True, start, 2)
        seq = Sequence(prompt, prompt.rid, 1, max_new, frozenset())
        run_all(scheduler, [seq])
        scores = [score for score, _ in seq.input_scores]
        assert [token for _, token in seq.input_scores] == ids[start:]
        assert scores[0] is None
        assert scores[1:] == pytest.approx(plain_logprobs(model, ids[: start + 1], ids[start + 1 :]), abs=CLOSE)  # fmt: skip
        assert len(seq.input_top) == len(scores)
        assert len(seq.output) == max_new
        assert seq.cached <= start


def test_a_prompt_longer_than_one_prefill_chunk_is_computed_in_pieces(tmp_path: Path) -> None:
    folder = build_folder(tmp_path / "m", max_position_embeddings=2048)
    prompts = [[3 + i % 90 for i in range(n)] for n in (700, 1100, 650)]
    done = run_all(
        new_scheduler(folder, Limits(max_prefill_tokens=4096)),
        [new_sequence(p, i, max_new_tokens=4) for i, p in enumerate(prompts)],
    )
    assert_scores_match(plain_model(folder), done)


def test_running_requests_never_hold_more_tokens_than_the_limit(folder: Path) -> None:
    scheduler = new_scheduler(folder, Limits(max_total_tokens=50))
    sequences = [new_sequence([7] * 10, i, max_new_tokens=10, ignore_eos=True) for i in range(5)]
    scheduler.submit(sequences)
    most = 0
    while not scheduler.idle:
        scheduler.step()
        most = max(most, len(scheduler.running))
    assert most == 2
    assert all(len(seq.output) == 10 for seq in sequences)


def test_a_version_that_sampled_nothing_has_no_span(folder: Path) -> None:
    scheduler = new_scheduler(folder)
    seq = new_sequence([5, 6], max_new_tokens=8, ignore_eos=True)
    scheduler.submit([seq])
    scheduler.step()
    scheduler.rename("1")
    scheduler.rename("2")
    run_all(scheduler, [])
    assert seq.spans == [("0", 0), ("2", 2)]
