"""Questions with verifiable answers: the suites' own scorers decide, and refusals have their reasons."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from environments.reasoning_gym.family import NO_ORACLE, ReasoningGymFamily
from environments.rlve_gym.family import GeneratorOptions, RlveGymFamily
from tests.unit.environments.tasks import task_of
from triforge.environments.kit import part_of, wrapped
from triforge.environments.questions import Grade, Question, QuestionFamily
from triforge.environments.worker import TooSlowError
from triforge.errors import EnvError, InputError
from triforge.types import Params

SORTING: Params = {"environment": "Sorting", "seed": 1, "parameter": {"N": 3}}


@pytest.fixture(scope="module")
def rlve() -> Iterator[RlveGymFamily]:
    pytest.importorskip("Gym", reason="pip install -c constraints.txt -e '.[rlve]'")
    family = RlveGymFamily()
    yield family
    family.worker.close()


@pytest.fixture(scope="module")
def gym() -> Iterator[ReasoningGymFamily]:
    pytest.importorskip(
        "reasoning_gym", reason="pip install -c constraints.txt -e '.[reasoning-gym]'"
    )
    family = ReasoningGymFamily()
    yield family
    family.worker.close()


@pytest.mark.parametrize(
    ("response", "answer", "part"),
    [
        ("so <answer>1</answer> no <answer> 2 </answer>.", "tag", " 2 "),
        ("<answer>1", "tag", ""),
        ("</answer>", "tag", ""),
        ("\\boxed{\\frac{1}{2}}", "boxed", "\\frac{1}{2}"),
        ("\\boxed{1} or \\boxed{2}} or \\boxed{3", "boxed", "2"),
        ("\\boxed{1\\boxed{2}", "boxed", "2"),
        ("\\boxed{" * 100_000, "boxed", ""),  # in one pass: hours otherwise
    ],
    ids=range(7),
)
def test_the_answer_is_what_stands_in_the_last_mark(response: str, answer: str, part: str) -> None:
    assert part_of(response, answer) == part  # type: ignore[arg-type]
    assert part_of(wrapped("x y", answer), answer) == "x y"  # type: ignore[arg-type]


async def test_rlves_verifier_grades_right_wrong_and_unreadable_answers(
    rlve: RlveGymFamily,
) -> None:
    made = task_of(rlve, SORTING)
    gold = rlve.gold(made, {})
    assert gold is not None
    for response, score, valid, success in (
        (gold[0], "Score 1.", True, True),
        ("<answer>9 9</answer>", "Score -0.5.", True, False),
        ("<answer>words</answer>", "Score -1.", False, False),
        ("no tag", "Score 0.", False, False),
    ):
        environment = rlve.make({})
        await environment.reset(made, seed=0)
        result = await environment.step(response)
        seen = (result.observation.text, result.action_valid, result.success)
        assert seen == (score, valid, success)


def test_rlve_has_four_hundred_environments_with_levels(rlve: RlveGymFamily) -> None:
    assert len(rlve.worker.call("names")) == 400
    lengths = [
        rlve.generate(count=1, seed=1, options=rlve.at_level(level, {"environments": ["Sorting"]}))[
            0
        ]["parameter"]
        for level in range(3)
    ]
    assert lengths == [{"N": 3}, {"N": 4}, {"N": 5}]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({**SORTING, "environment": "Chess"}, "'Chess' is unknown"),
        ({**SORTING, "parameter": {}}, "N is required"),
        ({**SORTING, "seed": -1}, "seed"),
    ],
)
def test_an_impossible_problem_is_refused(
    rlve: RlveGymFamily, params: Params, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        rlve.validate(params)


async def test_several_tries_end_with_the_first_right_answer(rlve: RlveGymFamily) -> None:
    made = task_of(rlve, SORTING)
    environment = rlve.make({"tries": 3})
    await environment.reset(made, seed=0)
    assert not (await environment.step("<answer>0</answer>")).done
    gold = rlve.gold(made, {})
    assert gold is not None
    result = await environment.step(gold[0])
    assert (result.done, result.success) == (True, True)


class Slow(QuestionFamily):
    """Its verifier raises what it is given; its questions are slow where a seed says so."""

    name = "slow"
    generator_options = GeneratorOptions

    def __init__(self, error: EnvError | None = None) -> None:
        super().__init__()
        self.error = error

    def names(self, wanted: Any) -> Sequence[str]:
        return ()

    def choose(self, rng: Random, wanted: Any, names: Sequence[str]) -> Params:
        return {"number": rng.randrange(5, 10)}

    def read(self, params: Params) -> Params:
        return params

    def ask(self, params: Params) -> Question:
        if params.get("number") == 7:
            raise TooSlowError("slow: 'ask' took more than 10 s of processor time")
        return Question(text="How much?", gold="1", kind="sum")

    def grade(self, params: Params, answer: str) -> Grade:
        if self.error is not None:
            raise self.error
        return Grade(score=1.0, solved=True, readable=True)


async def test_an_answer_that_a_verifier_does_not_get_through_is_a_wrong_one() -> None:
    family = Slow(TooSlowError("slow: 'grade' took more than 10 s of processor time"))
    episode = family.make({})
    await episode.reset(task_of(family, {}), seed=1)
    result = await episode.step("<answer>9**9**9</answer>")
    assert (result.success, result.action_valid, result.done) == (False, False, True)
    await episode.close()


async def test_a_machine_that_is_too_busy_to_verify_is_no_verdict_on_the_answer() -> None:
    family = Slow(EnvError("slow: 'grade' was not answered within 70 s"))
    episode = family.make({})
    await episode.reset(task_of(family, {}), seed=1)
    with pytest.raises(EnvError, match="not answered"):
        await episode.step("<answer>1</answer>")


def test_a_slow_question_is_refused_by_name_and_redrawn_only_where_that_is_wanted() -> None:
    family = Slow()
    seed = next(n for n in range(99) if Random(f"slow {n} 0").randrange(5, 10) == 7)
    with pytest.raises(InputError, match=r"drawn was {'number': 7}.*redraw_slow"):
        family.generate(count=1, seed=seed, options={})
    assert family.generate(count=1, seed=seed, options={"redraw_slow": True})[0] != {"number": 7}


async def test_questions_leave_the_loops_own_threads_free() -> None:
    """While 64 episodes wait for one verifier, other work gets a thread of the loop at once."""
    asked, answered = threading.Event(), threading.Event()

    class Waiting(Slow):
        def grade(self, params: Params, answer: str) -> Grade:
            asked.set()
            assert answered.wait(60.0)
            return super().grade(params, answer)

    family = Waiting()
    made = task_of(family, {})
    episodes = [family.make({}) for _ in range(64)]
    await asyncio.gather(*(episode.reset(made, seed=0) for episode in episodes))
    steps = [asyncio.ensure_future(episode.step("<answer>1</answer>")) for episode in episodes]
    assert await asyncio.to_thread(asked.wait, 60.0)
    assert not any(step.done() for step in steps)
    answered.set()
    assert all(result.success for result in await asyncio.gather(*steps))


def test_levels_and_refusals_of_reasoning_gym_are_its_own(gym: ReasoningGymFamily) -> None:
    easy, hard = (
        gym.validate({"dataset": "chain_sum", "seed": 1, "level": level}).instruction
        for level in (0, 3)
    )
    assert len(easy) < len(hard)
    for params, sentence in (
        ({"dataset": "chess", "seed": 1}, "'chess' is unknown"),
        ({"dataset": "acre", "seed": 1, "level": 0}, "no difficulty levels"),
        ({"dataset": "chain_sum", "seed": 1, "level": 99}, "has the levels 0 to"),
        ({"dataset": "chain_sum", "seed": 1, "config": {"colour": 1}}, "colour"),
    ):
        with pytest.raises(InputError, match=sentence):
            gym.validate(params)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown chess"):
        gym.generate(count=1, seed=1, options={"datasets": ["chess"]})


@pytest.mark.parametrize("name", NO_ORACLE)
def test_a_dataset_that_knows_no_answer_has_no_gold(gym: ReasoningGymFamily, name: str) -> None:
    assert gym.gold(task_of(gym, {"dataset": name, "seed": 3}), {}) is None
