"""A tiny policy of a family without solutions, and of few tasks."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from demo.models import __main__ as models
from demo.models.tiny_policy import write_solutions
from triforge.environments.kit import Family, Observation, StepResult, Strict
from triforge.errors import InputError
from triforge.rendering import Renderer
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


FAMILY, NOTHING = Riddles(), Nothing()
NAMED = f"{__name__}:FAMILY"


def test_a_family_without_solutions_gives_the_words_of_all_its_tasks(tmp_path: Path) -> None:
    assert write_solutions(tmp_path, NAMED, generate={}, options={}) == 0
    words = set((tmp_path / "words.txt").read_text().split())
    assert words == {"say", *(f"word{n}" for n in range(5)), *map(str, range(5))}


def test_its_model_has_random_weights_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.main(["tiny-policy", "--out", str(tmp_path / "made"), "--env", NAMED]) == 0
    assert "nothing to imitate: its weights are random" in capsys.readouterr().out
    renderer = Renderer.from_folder(tmp_path / "made")
    assert len(set(renderer.encode_text("say word3 4"))) == 3


def test_a_family_that_makes_no_task_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="asked for 1024 tasks, there are 0"):
        write_solutions(tmp_path, f"{__name__}:NOTHING", generate={}, options={})
