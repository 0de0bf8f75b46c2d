"""A tiny policy of a family without solutions: of listed actions, of answers in rows, of neither; and of few tasks."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from demo.models import __main__ as models
from demo.models.tiny_policy import write_solutions
from triforge.environments.kit import Family, Observation, StepResult, Strict
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.rollout.protocols import Reset
from triforge.types import Params


class Riddle(Strict):
    asked: str
    columns: dict[str, list[int]]


class Answering:
    done = False

    def __init__(self, given: Riddle, options: Strict) -> None:
        pass

    def play(self, response: str) -> StepResult:
        self.done = True
        seen = Observation(text="")
        return StepResult(observation=seen, action=response, action_valid=True, done=True, success=False)  # fmt: skip


class Riddles(Family[Riddle, Strict]):
    """A family of few tasks, and of no solutions."""

    name, params, episode, never_blocks, there = "riddles", Riddle, Answering, True, 5

    def instruction(self, given: Riddle) -> str:
        return given.asked

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        if count > self.there:
            raise InputError(f"asked for {count} tasks, there are {self.there}")
        rows = [{"asked": f"say word{n}", "columns": {"answer": [n]}} for n in range(self.there)]
        return Random(seed).sample(rows, count)


class Nothing(Riddles):
    there = 0


class Start(Strict):
    seed: int


class Climbing:
    """A walk of four steps, up or down; its score is the height at the end."""

    def __init__(self, given: Start, options: Strict) -> None:
        self.done, self.height, self.left = False, 0, 4

    def start(self) -> Reset:
        return Reset(observation=Observation(text="at 0", admissible=("up", "down")))

    def play(self, response: str) -> StepResult:
        self.height += {"up": 1, "down": -1}[response]
        self.left -= 1
        self.done = self.left == 0
        seen = Observation(text=f"at {self.height}", admissible=() if self.done else ("up", "down"))
        score = float(self.height) if self.done else None
        return StepResult(observation=seen, action=response, action_valid=True, done=self.done, score=score)  # fmt: skip


class Climbs(Family[Start, Strict]):
    name, params, episode, never_blocks = "climbs", Start, Climbing, True

    def instruction(self, given: Start) -> str:
        return "Climb."

    def new_task(self, rng: Random) -> Params:
        return {"seed": rng.randrange(10**9)}


class Mute(Climbs):
    """The same, and no action is listed."""

    name, episode = "mute", Answering


FAMILY, NOTHING, CLIMBS, MUTE = Riddles(), Nothing(), Climbs(), Mute()


def made(folder: Path, family: str) -> tuple[list[list[str]], set[str]]:
    """The responses of each conversation, and the words."""
    count = write_solutions(folder, f"{__name__}:{family}", generate={}, options={})
    lines = [json.loads(line) for line in (folder / "chats.jsonl").read_text().split("\n") if line]
    assert len(lines) == count
    responses = [[m["content"] for m in line["messages"] if m["role"] == "assistant"] for line in lines]  # fmt: skip
    return responses, set((folder / "words.txt").read_text().split())


def test_the_best_random_episodes_are_imitated_where_actions_are_listed(tmp_path: Path) -> None:
    chats, words = made(tmp_path, "CLIMBS")
    assert chats == [["up"] * 4] * 256
    assert words == {"Climb.", "at", "up", "down", *map(str, range(-4, 5))}, (
        "no seed of a task is a word"
    )


def test_answers_of_any_row_are_imitated_where_rows_have_columns(tmp_path: Path) -> None:
    chats, words = made(tmp_path, "FAMILY")
    answers = [answer for (answer,) in chats]
    assert len(answers) == 1024
    for row in range(5):
        assert set(answers[row::5]) == set(map(str, range(5)))
    assert words == {"say", *(f"word{n}" for n in range(5)), *map(str, range(5))}


def test_a_model_with_nothing_to_imitate_has_random_weights_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = f"{__name__}:MUTE"
    assert models.main(["tiny-policy", "--out", str(tmp_path / "made"), "--env", named]) == 0
    assert f"{named} has no `solution`" in capsys.readouterr().out
    assert Renderer.from_folder(tmp_path / "made").encode_text("Climb.")


def test_a_family_that_makes_no_task_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="asked for 1024 tasks, there are 0"):
        write_solutions(tmp_path, f"{__name__}:NOTHING", generate={}, options={})
