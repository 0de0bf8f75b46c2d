"""Demonstrations: exactly what the environment says, careless in the way that was asked for, labelled."""

from __future__ import annotations

from typing import Any

import pytest

from demo.demonstrations import demonstrations
from environments.household.careless import Demonstration
from environments.household.family import FAMILY
from environments.household.wording import vocabulary
from triforge.types import Task

TASKS = FAMILY.generate(count=60, seed=3, options={"goals": ["clean", "heat", "place", "look"]})


def shown(**settings: Any) -> list[Demonstration]:
    return list(demonstrations(TASKS, **{"seed": 1, "forget_rate": 0.0, **settings}))


def test_a_careful_demonstrator_succeeds_and_every_label_is_good() -> None:
    for demonstration in shown(random_rate=0.0):
        assert demonstration.success
        assert set(demonstration.labels) == {1}
        assert not any(demonstration.noisy)


@pytest.mark.parametrize(
    "options",
    [
        {"wording": "terse"},
        {"wording": "alfworld", "answer": "boxed"},
        {"wording": "alfworld"},
    ],
)
async def test_a_transcript_is_what_the_environment_prints(options: dict[str, Any]) -> None:
    settings = {"random_rate": 0.3, "forget_rate": 0.3, "options": options}
    for params, demonstration in zip(TASKS[:12], shown(**settings), strict=False):
        task = Task(
            id="t",
            pool_id="p",
            slot="t",
            family="household",
            instruction=demonstration.instruction,
            params=params,
        )
        chat = list(demonstration.messages)
        environment = FAMILY.make(options)
        reset = await environment.reset(task, seed=0)
        if options["wording"] == "alfworld":
            assert chat.pop(0) == {"role": "system", "content": reset.system}
        assert chat.pop(0) == {"role": "user", "content": reset.observation.text}
        for label in demonstration.labels:
            assert chat[0]["role"] == "assistant"
            result = await environment.step(chat.pop(0)["content"])
            assert chat.pop(0) == {"role": "user", "content": result.observation.text}
            assert result.label == label
        assert not chat
        assert result.done
        assert result.success == demonstration.success


def test_all_terse_words_are_in_the_vocabulary() -> None:
    words = set(vocabulary())
    for demonstration in shown(random_rate=0.4, forget_rate=0.3, options={"wording": "terse"}):
        for message in demonstration.messages:
            assert message["content"] == " ".join(message["content"].split())
            assert set(message["content"].split()) <= words, message


def test_a_forgetful_demonstrator_delivers_untreated_things_and_wanders_until_the_end() -> None:
    for params, demonstration in zip(TASKS, shown(random_rate=0.0, forget_rate=1.0), strict=True):
        goal = params["goal"]
        treated = goal["type"] in ("clean", "heat")  # type: ignore[index, call-overload]
        assert demonstration.forgetful == treated
        assert demonstration.success == (not treated)
        if treated:
            responses = [m["content"] for m in demonstration.messages if m["role"] == "assistant"]
            assert len(responses) == params["horizon"]
            put = f"put {goal['object']}"  # type: ignore[index, call-overload]
            assert responses.count(put) == 1
            assert -1 in demonstration.labels
            assert not {"clean", "heat"} & {response.split()[0] for response in responses}


def test_a_confused_demonstrator_does_first_what_other_tasks_ask() -> None:
    careful = shown(random_rate=0.0)
    confused = shown(random_rate=0.0, confuse_rate=1.0)
    assert careful == shown(random_rate=0.0, confuse_rate=0.0)
    wrong = [
        (demonstration, label, message["content"])
        for demonstration in confused
        for label, message in zip(demonstration.labels, demonstration.messages[1::2], strict=True)
        if label == -1
    ]
    assert {said.split()[0] for _, _, said in wrong} >= {"take", "clean", "heat", "cool", "put"}
    assert sum(d.success for d in confused) > len(confused) / 4, "it remembers the task"
    assert 1 in {label for d in confused for label in d.labels}


def test_the_rates_are_kept() -> None:
    noisy = [flag for d in shown(random_rate=0.25) for flag in d.noisy]
    assert 0.2 < sum(noisy) / len(noisy) < 0.3
    treated = shown(random_rate=0.0, forget_rate=0.5)
    goals = [params["goal"]["type"] for params in TASKS]  # type: ignore[index, call-overload]
    forgot = [
        d.forgetful for d, goal in zip(treated, goals, strict=True) if goal in ("clean", "heat")
    ]
    assert 0.3 < sum(forgot) / len(forgot) < 0.7


def test_episodes_have_the_rates_of_a_list_in_turn() -> None:
    careful, wild = shown(random_rate=(0.0, 1.0))[::2], shown(random_rate=(0.0, 1.0))[1::2]
    assert not any(flag for d in careful for flag in d.noisy)
    assert all(flag for d in wild for flag in d.noisy)


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert shown(random_rate=0.3) == shown(random_rate=0.3)
    assert shown(random_rate=0.3) != shown(random_rate=0.3, seed=2)


def test_random_presses_include_inadmissible_commands() -> None:
    only = shown(random_rate=1.0, inadmissible_share=1.0)
    for demonstration in only:
        observations = [m["content"] for m in demonstration.messages if m["role"] == "user"]
        assert set(observations[1:]) == {"fail"}
