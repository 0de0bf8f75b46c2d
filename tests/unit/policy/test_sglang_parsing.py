"""The meaning of an engine's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.policy.engines.answers import is_too_long
from services.policy.engines.sglang_parsing import prompt_logprobs_of
from triforge.errors import PolicyError

RECORDED = Path(__file__).parents[2] / "contract" / "sglang"


@pytest.mark.parametrize("name", ["generate_over_context", "generate_long_prompt"])
def test_what_sglang_says_of_a_prompt_that_does_not_fit_is_understood(name: str) -> None:
    reply = json.loads((RECORDED / f"{name}.json").read_text())["reply"]
    assert is_too_long(reply["error"]["message"])


@pytest.mark.parametrize("name", ["generate_bad_regex", "generate_bad_temperature"])
def test_another_refusal_is_not_taken_for_a_full_context(name: str) -> None:
    reply = json.loads((RECORDED / f"{name}.json").read_text())["reply"]
    assert not is_too_long(json.dumps(reply))


def test_what_the_local_engine_says_is_understood() -> None:
    assert is_too_long(
        "the input (9 tokens) plus max_new_tokens (4) exceeds --max-total-tokens 8; shorten"
    )


@pytest.mark.parametrize("pairs", [[], [[None, 5, None]], [[None, 5], ["x", 6], [-1.0, 7]], None])
def test_log_probabilities_of_a_prompt_are_all_of_them_or_an_error(pairs: Any) -> None:
    answer = {"meta_info": {"input_token_logprobs": pairs, "weight_version": "4"}}
    with pytest.raises(PolicyError, match="gave no log-probabilities of its prompt"):
        prompt_logprobs_of(answer, [5, 6, 7], "http://a")


def test_log_probabilities_of_a_prompt_begin_at_its_second_id() -> None:
    pairs = [[None, 5, None], [-1.5, 6, None], [-2.0, 0, None]]
    answer = {"meta_info": {"input_token_logprobs": pairs, "weight_version": "4"}}
    assert prompt_logprobs_of(answer, [5, 6, 7], "http://a") == ([-1.5, -2.0], 4)
