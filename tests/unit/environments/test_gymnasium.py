"""Environments of gymnasium by their id: shown as text, steered by names, rewarded by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from environments.gymnasium.family import FAMILY, GymnasiumFamily, plain
from tests.unit.environments.tasks import task_of
from triforge.environments import plugins
from triforge.errors import InputError
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params

gymnasium = pytest.importorskip(
    "gymnasium", reason="pip install -c constraints.txt -e '.[gymnasium]'"
)
LAKE: Params = {
    "kwargs": {"is_slippery": False},
    "instruction": "Cross the lake.",
    "actions": ["left", "down", "right", "up"],
}
MODULE = """
import gymnasium
from gymnasium import spaces
class Echo(gymnasium.Env):
    observation_space, action_space = spaces.Text(20), spaces.Text(9)
    def reset(self, *, seed=None, options=None):
        return "say hello", {}
    def step(self, action):
        return "thanks", 2.5, True, False, {"is_success": action == "hello"}
class Masked(Echo):
    action_space = spaces.Discrete(3, start=5)
    def reset(self, *, seed=None, options=None):
        return "choose", {"action_mask": [1, 0, 1]}
    def step(self, action):
        return f"took {action}", 1.0, True, False, {}
gymnasium.register("Echo-v0", Echo)
gymnasium.register("Masked-v0", Masked, reward_threshold=0.5)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_my_own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


async def play(family: GymnasiumFamily, params: Params, *responses: str) -> tuple[Any, list[Any]]:
    environment = family.make({})
    reset = await environment.reset(task_of(family, params), seed=1)
    results = [await environment.step(response) for response in responses]
    await environment.close()
    return reset, results


async def test_a_drawn_game_is_played_by_the_names_of_its_actions() -> None:
    lake = FAMILY.named("FrozenLake-v1")
    require(await check_environment(lake, generator_options=LAKE))
    way = ("down", "Down", "fly", "right", "right", "down", "right")
    reset, results = await play(lake, {**LAKE, "seed": 3}, *way)
    assert reset.observation.text.startswith("Cross the lake.\n")
    assert "<red>S</red>FFF\nFHFH" in reset.observation.text
    assert reset.observation.admissible == ("left", "down", "right", "up")
    assert [result.action_valid for result in results] == [way[n] != "fly" for n in range(7)]
    assert [result.reward for result in results] == [0.0] * 6 + [1.0]
    assert (results[-1].done, results[-1].success, lake.success_at) == (True, None, 0.7)


async def test_an_environment_of_ones_own_is_named_with_its_module() -> None:
    family = FAMILY.named("of_my_own:Echo-v0")
    for response, won in (("hello", True), ("nothing", False)):
        reset, (result,) = await play(family, {"seed": 0}, response)
        assert reset.observation.text.endswith("\nsay hello")
        assert (result.success, result.reward, result.observation.text) == (won, 2.5, "thanks")
    assert family.success_at is None


async def test_a_mask_bounds_the_actions_and_numbers_begin_where_the_space_does() -> None:
    family = FAMILY.named("of_my_own:Masked-v0")
    reset, (refused, taken) = await play(family, {"seed": 0}, "6", "7")
    assert reset.observation.admissible == ("5", "7")
    assert (refused.action_valid, refused.done) == (False, False)
    assert (taken.observation.text, family.success_at) == ("took 7", 0.5)


@pytest.mark.parametrize(
    ("which", "params", "sentence"),
    [
        ("CartPole-v1", {}, "observations are Box.*expected text"),
        ("NoSuchGame-v0", {}, "cannot be made: NameNotFound"),
        ("FrozenLake-v1", {"kwargs": {"colour": 1}}, "cannot be made: TypeError"),
        ("FrozenLake-v1", {"actions": ["up"]}, "given 1 names, expected 4"),
        ("FrozenLake-v1", {"horizon": 0}, "horizon"),
        ("", {}, "name one, such as gymnasium:FrozenLake-v1"),
    ],
)
def test_what_cannot_be_played_as_text_is_refused(
    which: str, params: Params, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        GymnasiumFamily(which).validate({"seed": 1, **params})


def test_a_module_that_may_not_be_named_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORGE_PLUGINS", "another")
    plugins.here.cache_clear()
    try:
        with pytest.raises(InputError, match="TRIFORGE_PLUGINS"):
            GymnasiumFamily("no_such_module:Echo-v0").validate({"seed": 1})
    finally:
        plugins.here.cache_clear()


def test_colours_become_words() -> None:
    assert (
        plain("\x1b[34;1mR\x1b[0m:\x1b[43m \x1b[0m\x1b[2K") == "<blue>R</blue>:<yellow> </yellow>"
    )
