"""Supervised items for a judge are the very prompts it will be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.reward.__main__ import main
from services.reward.items import read_transcripts, write_items
from services.reward.prompts import Episode, build_prompt
from services.reward.requests import StepText
from triforge.errors import InputError
from triforge.rollout.verdicts import parse_vote

LINE = {
    "instruction": "put mug in shelf",
    "steps": [
        {"observation": "service desk", "response": "go desk", "action": "go desk",
         "next_observation": "mug", "label": 1},
        {"observation": "mug", "response": "fly", "next_observation": "fail", "label": -1},
        {"observation": "fail", "response": "wait", "next_observation": "fail", "label": None},
    ],
}  # fmt: skip


def test_each_labelled_step_becomes_a_chat_with_the_judges_own_prompt(tmp_path: Path) -> None:
    source, target = tmp_path / "t.jsonl", tmp_path / "new" / "items.jsonl"
    source.write_text(json.dumps(LINE) + "\n\n", encoding="utf-8")
    arguments = ["judge-items", "--in", str(source), "--out", str(target), "--prompt", "terse"]
    assert main(arguments) == 0
    items = [json.loads(line)["messages"] for line in target.read_text().splitlines()]
    assert [[m["role"] for m in item] for item in items] == [["user", "assistant"]] * 2
    assert [item[1]["content"] for item in items] == [r"\boxed{1}", r"\boxed{-1}"]
    assert [parse_vote(item[1]["content"]) for item in items] == [1, -1]
    steps = [
        StepText.model_validate({k: v for k, v in s.items() if k != "label"}) for s in LINE["steps"]
    ]  # type: ignore[attr-defined]
    episode = Episode(instruction="put mug in shelf", steps=steps)
    for index, item in enumerate(items):
        (asked,) = build_prompt("terse", episode, index)
        assert item[0] == asked.model_dump()


def test_with_a_reference_each_label_is_taught_with_it_in_sight_as_well(tmp_path: Path) -> None:
    source, target = tmp_path / "t.jsonl", tmp_path / "items.jsonl"
    source.write_text(json.dumps(LINE | {"reference": ["go desk", "take mug"]}), encoding="utf-8")
    assert write_items(source, target, prompt="terse") == 4
    items = [json.loads(line)["messages"] for line in target.read_text().splitlines()]
    assert [parse_vote(item[1]["content"]) for item in items] == [1, 1, -1, -1]
    shown = ["known go desk ; take mug ;" in item[0]["content"] for item in items]
    assert shown == [False, True, False, True]


def test_bad_lines_are_all_named_and_nothing_is_written(tmp_path: Path) -> None:
    source, target = tmp_path / "t.jsonl", tmp_path / "items.jsonl"
    target.write_text("before")
    wrong_label = json.loads(json.dumps(LINE))
    wrong_label["steps"][1]["label"] = 0
    lines = [json.dumps(LINE), "{", json.dumps(wrong_label), json.dumps({"instruction": "x"})]
    source.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        write_items(source, target, prompt="terse")
    problems = caught.value.problems
    assert [p.split(":")[0] for p in problems] == ["line 2", "line 3", "line 4"]
    assert "steps.1.label" in problems[1]
    assert target.read_text() == "before"


def test_a_missing_file_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    arguments = ["judge-items", "--in", str(tmp_path / "no"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert not (tmp_path / "out").exists()


def test_a_long_list_of_bad_lines_is_cut() -> None:
    with pytest.raises(InputError, match="and 5 more"):
        read_transcripts(["{"] * 25)
