"""The files of a supervised warm start: texts of the environment, labels flipped at their rate, and read by the judge's side."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from demo.demonstrations import write_demonstrations
from services.reward.prompts import Episode, build_prompt
from services.reward.requests import StepText
from triforge.rollout.verdicts import parse_vote

CARELESS: dict[str, float] = {"random_rate": 0.3, "forget_rate": 0.5, "inadmissible_share": 0.3}


def written(folder: Path, *, flip_rate: float = 0.0, **options: Any) -> tuple[Any, Any, Any]:
    """Write demonstrations; return their counts, chats and transcripts."""
    counts = write_demonstrations(
        folder, count=40, seed=3, generate={"goals": ["clean", "place"]}, options=options,
        flip_rate=flip_rate, judge=True, **CARELESS,
    )  # fmt: skip
    chats, transcripts = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("policy.jsonl", "transcripts.jsonl")
    )
    return counts, chats, transcripts


@pytest.mark.parametrize(
    "options",
    [
        {"wording": "terse"},
        {"wording": "alfworld", "answer": "whole"},
    ],
)
def test_a_transcript_has_the_chat_step_by_step(tmp_path: Path, options: dict[str, Any]) -> None:
    counts, chats, transcripts = written(tmp_path, **options)
    assert counts["chats"] == len(chats) == len(transcripts) == 40
    assert 0.0 < counts["success"] < 1.0
    for chat, transcript in zip(chats, transcripts, strict=True):
        texts = [message["content"] for message in chat["messages"]]
        first = chat["messages"][0]["role"] == "system"
        assert transcript["system"] == (texts[0] if first else "")
        pairs = [[step["observation"], step["response"]] for step in transcript["steps"]]
        assert [text for step in pairs for text in step] == texts[first:]
        following = [step["next_observation"] for step in transcript["steps"]]
        assert following[:-1] == [observation for observation, _ in pairs[1:]]


def test_labels_are_flipped_at_their_rate_and_nothing_else_is(tmp_path: Path) -> None:
    _, chats, honest = written(tmp_path / "honest", wording="terse")
    _, again, flipped = written(tmp_path / "flipped", wording="terse", flip_rate=0.2)
    assert chats == again
    pairs = [
        (right.pop("label"), wrong.pop("label"))
        for one, other in zip(honest, flipped, strict=True)
        for right, wrong in zip(one["steps"], other["steps"], strict=True)
    ]
    assert honest == flipped, "but for the labels"
    assert {label for pair in pairs for label in pair} == {-1, 1}
    share = sum(right != wrong for right, wrong in pairs) / len(pairs)
    assert 0.15 < share < 0.25


def test_the_votes_on_an_episode_are_a_group_where_they_are_trained_on_together(
    tmp_path: Path,
) -> None:
    asked = {"count": 8, "seed": 3, "generate": {}, "options": {"wording": "terse"}, "judge": True}
    files = []
    for together in (True, False):
        folder = tmp_path / str(together)
        write_demonstrations(folder, **asked, flip_rate=0.0, together=together, **CARELESS)
        lines = [json.loads(line) for line in (folder / "judge.jsonl").read_text().splitlines()]
        transcripts = (folder / "transcripts.jsonl").read_text().splitlines()
        files.append([{**line, "group": ""} for line in lines])
        counts = Counter(line.get("group") for line in lines)
        lengths = [len(json.loads(transcript)["steps"]) for transcript in transcripts]
        assert [*counts.values()] == (lengths if together else [sum(lengths)])
    assert files[0] == files[1]


def test_a_judge_may_be_shown_a_solution_and_tasks_may_be_of_several_kinds(tmp_path: Path) -> None:
    kinds = [{"goals": ["clean"]}, {"goals": ["place"]}]
    write_demonstrations(
        tmp_path, count=8, seed=3, generate=kinds, options={"wording": "terse"}, flip_rate=0.0,
        judge=True, reference=True, **CARELESS,
    )  # fmt: skip
    lines = [json.loads(t) for t in (tmp_path / "transcripts.jsonl").read_text().splitlines()]
    assert ["clean" in line["instruction"] for line in lines] == [True] * 4 + [False] * 4
    chats = (tmp_path / "judge.jsonl").read_text().splitlines()
    prompts = iter(json.loads(chat)["messages"][0]["content"] for chat in chats)
    for line in lines:
        solution = " ".join(f"? {command}" for command in line["reference"].splitlines())
        assert solution.split()[-3:-1] == ["?", "put"]
        assert all(f" {solution} >" in next(prompts) for _ in line["steps"])


def test_a_step_becomes_a_chat_of_the_judges_own_prompt_and_its_vote(tmp_path: Path) -> None:
    _, _, transcripts = written(tmp_path, wording="terse")
    lines = iter((tmp_path / "judge.jsonl").read_text().splitlines())
    for transcript in transcripts:
        steps = [{k: v for k, v in s.items() if k != "label"} for s in transcript["steps"]]
        episode = Episode(
            instruction=transcript["instruction"], steps=[StepText(**step) for step in steps]
        )
        for index, step in enumerate(transcript["steps"]):
            asked, vote = json.loads(next(lines))["messages"]
            (prompt,) = build_prompt("terse", episode, index)
            assert asked == prompt.model_dump()
            assert (vote["role"], parse_vote(vote["content"])) == ("assistant", step["label"])
    assert next(lines, None) is None
