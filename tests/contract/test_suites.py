"""The families of suites keep the contract, and every family says of itself what people ask first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.reasoning_gym import family as reasoning_gym
from environments.rlve_gym import family as rlve_gym
from triforge.environments import registry
from triforge.environments.registry import About, expect_installed
from triforge.errors import ConfigError
from triforge.testing.check_environment import check_environment, require
from triforge.types import Params

CASES: list[tuple[str, Params, Params]] = [
    ("plan_path", {}, {}),
    ("plan_path", {"answer": "boxed"}, {"size": 6, "walls": 0.4}),
    ("puzzles", {}, {}),
    ("puzzles", {"answer": "boxed", "graded": True, "tries": 2}, {"level": [0, 3]}),
    ("reasoning_gym", {}, {"datasets": ["chain_sum", "letter_counting", "rush_hour"]}),
    ("reasoning_gym", {"answer": "boxed", "tries": 2}, {"datasets": ["gcd", "maze"], "level": 1}),
    ("rlve_gym", {}, {}),
    ("rlve_gym", {"answer": "boxed", "tries": 2}, {"environments": ["Sorting"], "level": 2}),
    ("shop", {}, {}),
    ("shop", {"answer": "boxed", "guide": False}, {"attributes": 4, "catalogue": {"size": 80}}),
    ("sokoban", {}, {}),
    ("sokoban", {"answer": "boxed", "moves": 5}, {"boxes": 2, "size": 7}),
    ("sokoban", {"answer": "last_line", "guide": False}, {"moves": [1, 4]}),
    ("toy_text", {}, {}),
    ("toy_text", {"answer": "boxed"}, {"slippery": True, "size": 6}),
    ("toy_text", {"guide": False}, {"games": ["bandit"]}),
]


@pytest.fixture(scope="module", autouse=True)
def _no_worker_is_left_behind() -> Iterator[None]:
    yield
    for family in (reasoning_gym.FAMILY, rlve_gym.FAMILY):
        family.worker.close()


@pytest.mark.parametrize(("name", "options", "generator_options"), CASES, ids=str)
async def test_the_family_keeps_the_contract(
    name: str, options: Params, generator_options: Params
) -> None:
    try:
        family = registry.family(name)
    except ConfigError as error:
        pytest.skip(error.detail)
    require(await check_environment(family, options=options, generator_options=generator_options))


def test_every_family_says_what_it_is() -> None:
    abouts = [registry.about(registry.load(name)) for name in registry.known()]
    assert all(about and about.what and about.licence for about in abouts)


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    about = About(what="x", tasks="x", licence="x", extra="toys", needs=("json", "no_such_module"))
    with pytest.raises(
        ConfigError, match=r"needs no_such_module.*pip install -c constraints.txt -e '.\[toys\]'"
    ):
        expect_installed("toy", about)
