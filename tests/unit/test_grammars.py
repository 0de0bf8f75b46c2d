"""A regular expression or a JSON schema that no engine takes is refused where it is given: in a request, or for a run."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import ValidationError

from services.local_engine.request import parse_sampling
from services.policy.api.chat import ChatRequest
from triforge.config import Sampling, parse
from triforge.errors import ConfigError, InputError

DEEP = '{"not":' * 2000 + "{}" + "}" * 2000
BAD: list[dict[str, Any]] = [
    *(
        {"regex": text}
        for text in (
            "(",
            "*",
            "[a",
            "a{2,1}",
            "(?=a)b",
            r"(a)\1",
            r"\p{Foo}",
            "\\",
            r"a\b",
            r"\Ba",
            r"\<a",
            r"\b{end}",
        )
    ),
    {"regex": "a" * 100_000},
    *({"json_schema": text} for text in (DEEP, "{", "[]", "NaN", '{"a": 1, "a": 2}')),
    {"json_schema": f'{{"const": "{"a" * 2**20}"}}'},
]


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: str(fields)[:40])
def test_what_no_engine_takes_is_refused_by_both_doors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sampling(**fields)
    with pytest.raises(InputError):
        parse_sampling(fields)


@pytest.mark.parametrize(
    "pattern", ["", r"(?i)[\p{L}&&[^x]]+?", r"\w{1000}", "(?P<x>a|b)*", "^a$", r"\\b[\x08]"]
)
def test_what_engines_take_is_taken(pattern: str) -> None:
    assert Sampling(regex=pattern).regex == pattern


def test_a_run_with_such_a_regex_is_not_made() -> None:
    with pytest.raises(ConfigError, match="regex"):
        parse({"models": {"policy": {"path": "m", "regex": "("}}})


def test_a_chat_with_one_is_wrong_and_no_fault_of_the_service() -> None:
    message = {"messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(InputError, match="regex"):
        ChatRequest.model_validate({**message, "regex": "("}).without_prompt()
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"not": schema}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    with pytest.raises(InputError, match="json_schema"):
        ChatRequest.model_validate({**message, "response_format": form}).without_prompt()


def test_a_document_with_many_mistakes_is_refused_at_once() -> None:
    begun = time.process_time()
    with pytest.raises(ConfigError) as refused:
        parse({"models": {"policy": {"path": "m", "stop": [1] * 80_000}}})
    assert len(refused.value.problems) == 100
    assert time.process_time() - begun < 2.0  # it took 20 s
