"""The warm start of a policy that will be asked for auxiliary objectives: the prompts are those of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from methods.envrl.items import write_items
from methods.envrl.options import OBJECTIVES, EnvRLOptions
from methods.envrl.rows import item
from methods.envrl.transitions import draw_transitions
from tests.unit.trainer.played import group_task, task_of, trajectory
from triforge.errors import ConfigError, InputError
from triforge.types import JudgedGroup, TrajectoryGroup

WORDING = {"prompt": "terse", "noop_texts": ["fail"]}
EPISODE = (
    ("room shelf fridge", "go fridge", "closed"),
    ("closed", "open fridge", "open apple"),
    ("open apple", "take mug", "fail"),
    ("fail", "take apple", "ok"),
    ("ok", "go shelf", "empty"),
    ("empty", "put apple", "won"),
)


def transcripts(path: Path, *, copies: int = 1) -> Path:
    steps = [
        {"observation": o, "response": r, "next_observation": n, "label": 1} for o, r, n in EPISODE
    ]
    line = json.dumps({"instruction": "put apple in shelf", "system": "", "steps": steps})
    path.write_text(f"{line}\n" * copies)
    return path


def chats(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def test_a_warm_start_asks_what_a_run_on_the_same_episode_asks(tmp_path: Path) -> None:
    source, target = transcripts(tmp_path / "played.jsonl"), tmp_path / "items.jsonl"
    assert write_items(source, target, count=100, options=WORDING, seed=1) == 10  # 5 transitions
    group = group_task()
    played = trajectory(group, 0, outcome=1, lengths=[1] * len(EPISODE))
    steps = tuple(
        step.model_copy(
            update={"observation": o, "response": r, "action": r, "next_observation": n}
        )
        for step, (o, r, n) in zip(played.steps, EPISODE, strict=True)
    )
    shown = played.model_copy(update={"steps": steps, "instruction": "put apple in shelf"})
    judged = JudgedGroup(
        played=TrajectoryGroup(group=group, task=task_of(group), trajectories=(shown,)),
        votes=(None,),
    )
    section = EnvRLOptions.model_validate({"measure": True, **WORDING})
    drawn = draw_transitions([judged], section, trained=100, seed=1).transitions
    asked = [item(kind, t, "terse") for t in drawn for kind in OBJECTIVES]
    messages = [[{"role": m.role, "content": m.text} for m in one] for one in asked]
    assert chats(target) == sorted(json.dumps({"messages": one}) for one in messages)


def test_transitions_are_drawn_once_each_and_the_same_every_time(tmp_path: Path) -> None:
    source = transcripts(tmp_path / "played.jsonl", copies=3)
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    for target in (first, again):
        assert write_items(source, target, count=3, options=WORDING, seed=1) == 6
    assert first.read_text() == again.read_text()
    assert len(set(chats(first))) == 6, "equal episodes teach nothing new"


def test_what_is_no_transcript_or_no_option_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": "go", "steps": [{"observation": "o"}]}\n')
    with pytest.raises(InputError, match=r"line 1: steps\.0\.response"):
        write_items(bad, tmp_path / "items.jsonl", count=1, options=WORDING, seed=1)
    with pytest.raises(ConfigError, match="colour"):
        write_items(bad, tmp_path / "items.jsonl", count=1, options={"colour": 1}, seed=1)
    assert not (tmp_path / "items.jsonl").exists()
