"""The shop: WebShop's score by hand, the pages, the search, and files in WebShop's format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from environments.shop.catalogue import (
    Index,
    synthetic,
)
from environments.shop.family import FAMILY
from environments.shop.product import Goal, Product, alike, score, type_score
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError
from triforge.types import Params

SHOES = Product(
    asin="B1", title="Alder trail running shoes, waterproof", query="running shoes", category="sports \u203a shoes",
    price=55.0, attributes=("waterproof", "rubber sole"), options={"color": ("red", "blue"), "size": ("8", "9")},
    bullets=("rubber sole: grips",), description="Made for long runs.",
)  # fmt: skip
GOAL = Goal(asin="B1", attributes=("waterproof", "rubber sole"), options={"color": "red", "size": "9"}, price_upper=60.0)  # fmt: skip


@pytest.mark.parametrize(
    ("bought", "chosen", "expected"),
    [
        (SHOES, {"color": "red", "size": "9"}, 1.0),
        (SHOES, {}, 3 / 5),
        (SHOES, {"color": "red", "size": "8"}, 4 / 5),  # a size must be the very one
        (replace(SHOES, price=61.0), {"color": "red", "size": "9"}, 4 / 5),
        (replace(SHOES, attributes=("waterproof",), bullets=()), {"color": "red", "size": "9"}, 4 / 5),
        (replace(SHOES, title="Tea", query="tea", category="x \u203a y"), {"color": "red", "size": "9"}, 0.0),
    ],
)  # fmt: skip
def test_a_purchase_is_worth_what_webshops_formula_says(
    bought: Product, chosen: dict[str, str], expected: float
) -> None:
    assert score(bought, chosen, GOAL, SHOES) == pytest.approx(expected)


def test_the_kind_of_thing_counts_by_query_category_and_title() -> None:
    wanted = replace(SHOES, title="a1 b1 c1 d1 e1 f1 g1 h1 i1 j1 k1")
    far = replace(wanted, query="tea", category="x")
    assert type_score(far, wanted) == 1.0
    assert type_score(replace(far, title="a1 b1 zz"), wanted) == 0.5  # 2 of 11 words
    assert type_score(replace(far, title="a1 zz"), wanted) == 0.1  # 1 of 11
    assert type_score(replace(wanted, title="zz"), wanted) == 0.0  # whatever the query says


def test_phrases_are_alike_when_one_has_the_words_of_the_other() -> None:
    assert alike("rubber sole", "sole, rubber") == 1.0
    assert alike("rubber sole", "black rubber sole") == 1.0
    assert alike("rubber sole", "wooden floor") < 0.5


def test_the_search_ranks_rare_words_first_and_ignores_plurals() -> None:
    products = [
        replace(SHOES, asin=f"B{n}", title=title, bullets=(), description="", attributes=(), options={}, query="")
        for n, title in enumerate(("red lamp", "red lamp shade", "red tea pots", "red lamp"))
    ]  # fmt: skip
    found = [product.asin for product in Index(products).find("red tea pot")]
    assert found[0] == "B2"
    assert Index(products).find("nothing known") == []
    assert [p.asin for p in Index(products).find("lamps")][:2] == ["B0", "B3"]


def test_a_catalogue_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    again = synthetic(3, 40)
    synthetic.cache_clear()
    assert again.products == synthetic(3, 40).products
    assert synthetic(4, 40).products != again.products
    assert len({product.asin for product in again.products}) == 40


async def test_a_visit_goes_forth_and_back_between_pages() -> None:
    (params,) = FAMILY.generate(count=1, seed=2, options={"options": 1})
    environment = FAMILY.make({})
    await environment.reset(task_of(FAMILY, params), seed=0)
    assert not (await environment.step("click[buy now]")).action_valid
    found = await environment.step("search[water bottle]")
    assert "[next >]" in found.observation.text
    second = await environment.step("click[next >]")
    assert "Page 2" in second.observation.text
    first = await environment.step("click[< prev]")
    assert first.observation.text == found.observation.text
    item = next(c for c in first.observation.admissible if c.startswith("click[b0"))
    opened = await environment.step(item.upper().replace("CLICK", "click"))
    assert "Price:" in opened.observation.text
    page = await environment.step("click[features]")
    assert page.observation.admissible == ("click[back to search]", "click[< prev]")
    assert (await environment.step("click[< prev]")).observation.text == opened.observation.text
    bought = await environment.step("click[buy now]")
    assert bought.done
    assert "Your score" in bought.observation.text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"asin": "nothing"}, "not in the catalogue"),
        ({"options": {"color": "plaid"}}, "not sold with 'plaid'"),
        ({"attributes": ["made of gold"]}, "scores"),
        ({"price_upper": 0.01}, "scores"),
        ({"attributes": []}, "attributes"),
        ({"catalogue": {"products": "../x.json"}}, "products"),
    ],
)
def test_an_impossible_visit_is_refused_with_the_reason(change: Params, sentence: str) -> None:
    (params,) = FAMILY.generate(count=1, seed=1, options={})
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**params, **change})
