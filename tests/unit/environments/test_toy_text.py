"""FrozenLake and a bandit in words."""

from __future__ import annotations

import pytest

from environments.toy_text.family import FAMILY
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.types import Params

gymnasium = pytest.importorskip(
    "gymnasium", reason="pip install -c constraints.txt -e '.[gymnasium]'"
)
LAKE: Params = {"game": "frozen_lake", "map": ["SFF", "FHF", "HFG"]}
BANDIT: Params = {"game": "bandit", "arms": [*("oak", "comet")], "risky": 1}


async def test_the_lake_is_crossed_by_the_moves_that_cross_gymnasiums() -> None:
    environment = FAMILY.make({})
    reset = await environment.reset(task_of(FAMILY, LAKE), seed=0)
    assert "PFF\nFHF\nHFG" in reset.observation.text
    for word in ("right", "Right", " down "):
        result = await environment.step(word)
        assert (result.action_valid, result.done) == (True, False)
    assert "SFF\nFHP\nHFG" in result.observation.text
    result = await environment.step("down")
    assert (result.done, result.success) == (True, True)


async def test_a_hole_ends_the_lake_in_failure() -> None:
    environment = FAMILY.make({})
    await environment.reset(task_of(FAMILY, LAKE), seed=0)
    await environment.step("right")
    result = await environment.step("down")
    assert (result.done, result.success) == (True, False)


async def test_slippery_ice_is_drawn_from_the_seed() -> None:
    async def walk(seed: int) -> list[str]:
        environment = FAMILY.make({})
        await environment.reset(
            task_of(FAMILY, {**LAKE, "map": ["SFFF"] + ["FFFF"] * 2 + ["FFFG"], "slippery": True}),
            seed=seed,
        )
        return [(await environment.step("right")).observation.text for _ in range(5)]

    assert await walk(1) == await walk(1)
    assert len({tuple(await walk(seed)) for seed in range(8)}) > 1


async def pulled(arm: str, seed: int) -> tuple[bool | None, float | None]:
    environment = FAMILY.make({})
    await environment.reset(task_of(FAMILY, BANDIT), seed=seed)
    result = await environment.step(arm)
    assert result.done
    return result.success, result.score


async def test_a_bandit_pays_what_it_drew_and_succeeds_by_what_it_pays_on_average() -> None:
    assert await pulled("oak", 0) == (False, 0.15)
    wild = [await pulled("comet", seed) for seed in range(400)]
    assert {success for success, _ in wild} == {True}
    assert {score for _, score in wild} == {0.0, 1.0}
    assert 0.2 < sum(score or 0.0 for _, score in wild) / 400 < 0.3
    assert wild[:8] == [await pulled("comet", seed) for seed in range(8)]
    assert await pulled("elephant", 0) == (False, None)


def test_bandits_name_a_calm_arm_and_a_wild_one_in_either_order() -> None:
    made = FAMILY.generate(count=72, seed=1, options={"games": ["bandit"], "chance": 0.1})
    assert {params["risky"] for params in made} == {0, 1}
    assert len({str(params) for params in made}) == 72
    for params in made:
        draft = FAMILY.validate(params)
        gold = FAMILY.gold(task_of(FAMILY, params), {})
        assert gold == [params["arms"][1 - params["risky"]]], draft  # type: ignore[operator,index]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"game": "chess"}, "known are frozen_lake, bandit"),
        ({**BANDIT, "arms": ["oak", "oak"]}, "two names"),
        ({**BANDIT, "sure": 0.25}, "neither arm is the better one"),
        ({**BANDIT, "arms": ["oak", "two words"]}, "arms"),
        ({**LAKE, "map": ["SFF", "FG"]}, "same length"),
        ({**LAKE, "map": ["SF", "FF"]}, "1 S and 0 G"),
        ({**LAKE, "map": ["SH", "HG"]}, "no way"),
        ({**LAKE, "horizon": 3}, "shortest way has 4"),
    ],
)
def test_an_impossible_game_is_refused_with_the_reason(params: Params, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate(params)
