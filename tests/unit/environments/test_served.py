"""A function of one process that others of the machine call: its signature, its results and its exceptions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triforge.environments import plugins, served
from triforge.environments.served import ServedFunction, serving
from triforge.errors import EnvError, InputError


def score(completions: list[str], answer: list[str], scale: float = 1.0, **_: object) -> Any:
    return np.array([float(text == right) for text, right in zip(completions, answer, strict=True)])


async def later(completions: list[str]) -> Any:
    return (len(text) for text in completions)


def raises(completions: list[str]) -> Any:
    raise KeyError(completions[0])


def test_a_served_function_has_its_signature_and_its_results(tmp_path: Path) -> None:
    with serving(score, tmp_path / "s") as address:
        function = ServedFunction(address)
        assert str(inspect.signature(function)) == "(completions, answer, scale=None, **_)"
        assert function(completions=["a", "b"], answer=["a", "a"]) == [1.0, 0.0]
        assert plugins.load(address, "reward") is score, "the process itself calls its own"
    with serving(later, tmp_path / "s") as address:
        assert ServedFunction(address)(completions=["a", "bb"]) == [1, 2]


def test_an_exception_comes_with_its_type_and_line(tmp_path: Path) -> None:
    line = inspect.getsourcelines(raises)[1] + 1
    with serving(raises, tmp_path / "s") as address, pytest.raises(EnvError) as raised:
        ServedFunction(address)(completions=["x"])
    assert raised.value.raised == f"KeyError at {__file__}:{line}"
    assert raised.value.detail == f"KeyError: 'x' ({__file__}:{line})"


def test_a_function_whose_process_is_gone_is_reported_and_a_second_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(score, tmp_path / "s") as address:
        with pytest.raises(InputError, match="another"), serving(later, tmp_path / "s"):
            pass
        assert served.find(address) is score
    with pytest.raises(InputError, match=r"field reward: .*triforge\.train\(resume=RUN"):
        plugins.load(address, "field reward")
    monkeypatch.setenv("TRIFORGE_PLUGINS", "my_rewards")
    plugins.here.cache_clear()
    with pytest.raises(InputError, match="name a function by its module"):
        plugins.load("unix:/run/docker.sock#x()", "reward")
    plugins.here.cache_clear()
