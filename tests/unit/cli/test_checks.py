"""A reward or an environment of the user's own is tried before a start, and refused if it raises at every answer."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from environments.prompts.family import FAMILY as PROMPTS
from triforge.cli import checks
from triforge.cli.checks import check_new_pool, demand_playable, demand_playable_code, demand_shown
from triforge.environments.kit import Family, Observation, StepResult, Strict
from triforge.errors import ConfigError, InputError
from triforge.rollout.protocols import EnvironmentFamily
from triforge.testing.model_folders import chatml_folder
from triforge.types import PoolState, Task

ROWS = [{"prompt": f"{n} and one?", "columns": {"answer": n + 1}} for n in range(2)]


def tried(family: EnvironmentFamily, rows: list[dict[str, Any]], **options: Any) -> None:
    demand_playable_code(family, [family.validate(row) for row in rows], options)


def misspelt(completions: list[str], **_: object) -> list[float]:
    return parsed(completions)


def parsed(texts: list[str]) -> list[float]:
    return [one.no_such_method() for one in texts]  # type: ignore[attr-defined]


def of_a_number(completions: list[str]) -> list[float]:
    return [1.0 / float(one) for one in completions]


def of_the_rows_answer(completions: list[str], answer: list[int]) -> list[float]:
    return [[str(right)].index(text) + 1.0 for text, right in zip(completions, answer, strict=True)]


def of_json(completions: list[str]) -> list[float]:
    return [json.loads(one)["answer"] == missing for one in completions]  # type: ignore[name-defined] # noqa: F821


def of_one_row(completions: list[str], answer: list[int]) -> list[float]:
    return [1.0 / (right - 1) for right in answer]


@pytest.mark.parametrize("reward", [misspelt, lambda completions: [None]])
def test_a_reward_that_always_raises_is_refused_with_its_row_and_line(
    reward: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "reward", reward)
    with pytest.raises(InputError, match=r"first 2 tasks; to .*'0 and one\?'") as refused:
        tried(PROMPTS, ROWS, reward=f"{__name__}:reward")
    detail = refused.value.detail
    assert detail.count(f"{__name__}:reward: ") == 1, "the same with every answer"
    if reward is misspelt:
        assert "AttributeError: 'str' object has no attribute 'no_such_method'" in detail
        frames = rf"{__file__}:\d+ in misspelt: .*\n  {__file__}:\d+ in parsed: return \[.*\n"
        assert re.search(frames, detail)
        whole = "".join(traceback.format_exception(refused.value))
        assert "in misspelt\n" in whole, "the cause of the cause is not lost"


def test_each_way_in_which_it_raises_is_shown_once_with_the_answer() -> None:
    with pytest.raises(InputError) as refused:
        tried(PROMPTS, ROWS, reward=f"{__name__}:of_json")
    shown = re.findall(r"answered '(.*?)': \S+ (\w+):", refused.value.detail)
    named = [("", "JSONDecodeError"), ("42", "TypeError"), ('{"answer": "42"}', "NameError")]
    assert shown == named


@pytest.mark.parametrize("play", [False, True])
def test_pool_is_made_without_calling_the_reward(play: bool) -> None:
    body = {"options": {"reward": f"{__name__}:misspelt"}, "tasks": [{"params": ROWS[0]}]}
    with pytest.raises(InputError) if play else nullcontext():
        pool, _ = check_new_pool("mine", body, "prompts", play=play)
        assert pool.tasks["train"] == {"active": 1}


@pytest.mark.parametrize("reward", ["of_a_number", "of_the_rows_answer", "of_one_row"])
def test_a_reward_that_takes_some_answer_passes(reward: str) -> None:
    tried(PROMPTS, ROWS, reward=f"{__name__}:{reward}")


class Room(Strict):
    depth: int


class Walk:
    def __init__(self, given: Room, options: object) -> None:
        self.done, self.left = False, given.depth

    def play(self, response: str) -> StepResult:
        self.left -= {"down": 1, "42": 0}[response]
        self.done = self.left == 0
        score = 1 / self.left if self.done else None
        seen = Observation(text="further")
        return StepResult(
            observation=seen, action=response, action_valid=True, done=self.done, score=score
        )


class Walks(Family[Room, Strict]):
    name, params, episode = "walks", Room, Walk

    def instruction(self, given: Room) -> str:
        return f"Go down {given.depth} times."

    def solution(self, given: Room, options: Strict) -> list[str]:
        return ["down"] * given.depth


def test_environment_is_played_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried(Walks(), [{"depth": 3}])  # of which "42" never gets down
    monkeypatch.setattr(checks, "_ANSWERS", ("", "up"))
    with pytest.raises(
        InputError, match=r"ZeroDivisionError in step 2 at 'down': .*test_checks.py:\d+\)"
    ):
        tried(Walks(), [{"depth": 3}])


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_system_message_that_the_policy_refuses_is_found_before_a_start(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(NO_SYSTEM)
    generated = {"generate": {"count": 1, "heldout": 0, "options": {}, "seed": 1}}
    prompt = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a?"}]

    def prompts(given: object) -> tuple[PoolState, Task]:
        rows = [{"params": {"prompt": given, "columns": {}}}]
        own = {"options": {"reward": f"{__name__}:misspelt"}, "tasks": rows}
        return check_new_pool("mine", own, "prompts", play=False)

    house = check_new_pool("mine", generated, "household", play=False)
    for shown, options in ((house, {"wording": "alfworld"}), (prompts(prompt), {})):
        with pytest.raises(ConfigError, match=r"takes no system message .*no system role"):
            demand_shown(folder, *shown, options)
    demand_shown(folder, *prompts(prompt[1:]), {})
    demand_shown(chatml_folder(tmp_path / "other"), *house, {})


@pytest.mark.parametrize(
    ("shows", "columns", "refused"),
    [
        (["rubric"], {"rubric": "Is short."}, ""),
        (["rubric", "reference"], {"rubric": "Is short."}, "'reference'"),
        (["rubric"], {"rubric": 3}, "'rubric'"),
        (["episode"], {}, ""),
    ],
)
def test_a_judge_is_not_shown_what_no_task_has(
    shows: list[str], columns: dict[str, Any], refused: str
) -> None:
    tasks = [{"params": {"prompt": str(n), "columns": columns}} for n in range(2)]
    body = {"options": {"reward": f"{__name__}:of_a_number", "success_at": 1.0}, "tasks": tasks}
    pool, _ = check_new_pool("mine", body, "prompts", play=False)
    document = {"reward": {"shows": shows}, "adaptation": {"controller": "none"}}
    with (
        pytest.raises(ConfigError, match=f"reward.shows: given {refused}")
        if refused
        else nullcontext()
    ):
        demand_playable(pool, document, {})


def test_held_out_tasks_too_few_to_show_a_gain_are_reported() -> None:
    for heldout, expected in ((16, "16 held-out tasks tell a gain from chance only above about 31 points"), (128, "")):  # fmt: skip
        reported: list[str] = []
        body = {"generate": {"count": 4, "heldout": heldout}}
        check_new_pool("p", body, "household", play=False, tell=reported.append)
        assert expected in "".join(reported)
        assert bool(expected) == bool(reported)
