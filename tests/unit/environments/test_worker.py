"""A suite in a process of its own: what it does to itself stays there, and the next question is answered all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from triforge.environments.worker import TooSlowError, Worker
from triforge.errors import EnvError, InputError

SUITE = "tests.unit.environments.suite_of_a_worker"


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("toys", SUITE, cpu_s=5.0)
    yield made
    made.close()


def test_what_a_suite_prints_is_no_answer_and_its_seeds_are_its_own(worker: Worker) -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert worker.call("add", a=2, b=3) == 5
    assert random.random() == expected


def test_threads_take_turns(worker: Worker) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: worker.call("add", a=n, b=1), range(40)))
    assert found == list(range(1, 41))


def test_refusals_failures_and_unknown_questions_leave_it_running(worker: Worker) -> None:
    with pytest.raises(InputError, match="toys: no such thing"):
        worker.call("refuse")
    with pytest.raises(EnvError, match="fail raised ZeroDivisionError: by zero"):
        worker.call("fail")
    with pytest.raises(EnvError, match="KeyError"):
        worker.call("dance")
    assert worker.call("add", a=1, b=1) == 2


def test_a_suite_gets_none_of_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORGE_DATABASE_URL", "postgresql://me:secret@host/name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    worker = Worker("toys", SUITE)
    try:
        environment = worker.call("environment")
    finally:
        worker.close()
    assert {"PATH", "LC_ALL"} <= set(environment)
    assert not [name for name in environment if name.startswith(("TRIFORGE_", "AWS_"))]


def test_a_suite_that_hangs_is_ended_and_started_anew_and_that_is_no_word_on_the_question() -> None:
    worker = Worker("toys", SUITE, wall_s=0.2)
    try:
        with pytest.raises(EnvError, match="'hang' within") as caught:
            worker.call("hang")
        assert not isinstance(caught.value, TooSlowError)
        worker._wall_s = 60.0
        assert worker.call("add", a=1, b=2) == 3
    finally:
        worker.close()


def test_what_uses_up_its_processor_time_is_too_slow_however_busy_the_machine_is() -> None:
    worker = Worker("toys", SUITE, cpu_s=0.2, wall_s=100.0)
    try:
        with pytest.raises(TooSlowError, match=r"'spin' took more than 0\.2 s of processor time"):
            worker.call("spin")
        for number in range(3):  # each question has a limit of its own
            assert worker.call("add", a=number, b=2) == number + 2
    finally:
        worker.close()


def test_a_suite_that_dies_is_an_error_and_started_anew(worker: Worker) -> None:
    with pytest.raises(EnvError, match="died"):
        worker.call("die")
    assert worker.call("add", a=1, b=2) == 3


def test_a_closed_worker_can_be_closed_again_and_used_again(worker: Worker) -> None:
    worker.close()
    worker.close()
    assert worker.call("add", a=0, b=0) == 0
