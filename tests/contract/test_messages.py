"""Every message has a worked example, and that example is the contract: it parses, dumps back, and nothing else gets in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.env_adapter.pools import changes
from services.env_adapter.sessions import store as sessions
from services.reward import requests as judge_requests
from triforge import types
from triforge.types import (
    Message,
)

EXAMPLES = Path(__file__).parent / "types"
MODELS: dict[str, type[Message]] = {
    name: found
    for module in (types, changes, sessions, judge_requests)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, Message) and found is not Message
}


def text_of(name: str) -> str:
    path = EXAMPLES / f"{name}.json"
    assert path.is_file(), f"{name} has no worked example; write {path}"
    return path.read_text(encoding="utf-8")


def changed(dumped: Any, golden: Any, where: str) -> list[str]:
    """Where a dumped message is not what its example says; a field that the example leaves out has its default."""
    if isinstance(golden, dict) and isinstance(dumped, dict):
        missing = [f"{where}.{name} is gone" for name in golden if name not in dumped]
        return missing + [
            problem
            for n in golden
            if n in dumped
            for problem in changed(dumped[n], golden[n], f"{where}.{n}")
        ]
    if isinstance(golden, list) and isinstance(dumped, list) and len(golden) == len(dumped):
        pairs = zip(dumped, golden, strict=True)
        return [
            problem for i, (d, g) in enumerate(pairs) for problem in changed(d, g, f"{where}[{i}]")
        ]
    same = json.dumps(dumped) == json.dumps(golden)  # 1 and 1.0 are not the same
    return [] if same else [f"{where}: {golden!r} in the example is dumped as {dumped!r}"]


@pytest.mark.parametrize("name", MODELS)
def test_the_example_shows_every_field_and_dumps_back(name: str) -> None:
    model, text = MODELS[name], text_of(name)
    message = model.model_validate_json(text)
    assert changed(json.loads(message.model_dump_json()), json.loads(text), name) == []
    assert model.model_validate_json(message.model_dump_json()) == message
    assert list(json.loads(text)) == list(model.model_fields)
    assert model.model_config["frozen"]
    with pytest.raises(ValidationError, match="extra_forbidden"):
        model.model_validate_json(json.dumps({**json.loads(text), "colour": "blue"}))


def test_there_is_no_example_without_a_message() -> None:
    assert sorted(path.stem for path in EXAMPLES.iterdir()) == sorted(MODELS)


def test_every_message_names_its_producer_or_is_part_of_one_that_does() -> None:
    named = {n for n, model in MODELS.items() if "Produced by:" in (model.__doc__ or "")}
    held = {
        part
        for model in MODELS.values()
        for part in re.findall(r'"#/\$defs/(\w+)"', json.dumps(model.model_json_schema()))
    }
    assert set(MODELS) - named - held == set()


# ---- the examples are one story, and its parts fit together ----
