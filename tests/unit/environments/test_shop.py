"""The shop: WebShop's score by hand, the pages, the search, and files in WebShop's format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from environments.shop.catalogue import (
    Catalogue,
    Index,
    synthetic,
)
from environments.shop.family import FAMILY, ShopEpisode
from environments.shop.product import Goal, Product, alike, score, type_score
from triforge.environments.kit import AnswerOptions
from triforge.errors import InputError
from triforge.types import Params, Task

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


def task(params: Params) -> Task:
    draft = FAMILY.validate(params)
    return Task(
        id="t", pool_id="p", slot="t", family="shop", instruction=draft.instruction, params=draft.params
    )  # fmt: skip


async def test_a_visit_goes_forth_and_back_between_pages() -> None:
    (params,) = FAMILY.generate(count=1, seed=2, options={"options": 1})
    environment = FAMILY.make({})
    await environment.reset(task(params), seed=0)
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


ITEM = {
    "asin": "B01", "name": "Alder waterproof trail shoes", "query": " Shoes ", "product_category": "a \u203a b",
    "small_description": ["rubber sole"], "full_description": "For runs.", "pricing": "$1,012.50$2,000.00",
    "customization_options": {"Color": [{"value": "Red/Blue", "image": None}], "Size": None}, "images": ["x"],
}  # fmt: skip


def test_an_option_that_could_mean_two_things_is_clicked_by_its_name_too() -> None:
    options = {"size": ("8", "9"), "width": ("9", "wide", "wide"), "show": ("reviews",)}
    shoes = replace(SHOES, asin="b1x", options=options)
    goal = replace(GOAL, options={"size": "9", "width": "wide"})
    wanted = replace(goal, asin="b1x")
    visit = ShopEpisode(Catalogue((shoes,)), wanted, "shoes", AnswerOptions(guide=False), 15)
    visit.start()
    visit.play("search[trail]")
    opened = visit.play("click[b1x]")
    offered = {
        "click[8]",
        "click[size: 9]",
        "click[width: 9]",
        "click[wide]",
        "click[show: reviews]",
    }
    assert offered < set(opened.observation.admissible)
    assert "click[9]" not in opened.observation.admissible
    assert opened.observation.admissible.count("click[wide]") == 1
    refused = visit.play("click[9]")
    assert (refused.action_valid, "(chosen: 9)" in refused.observation.text) == (False, False)
    chosen = visit.play("click[width: 9]")
    assert "width: [width: 9] [wide] (chosen: 9)" in chosen.observation.text
    assert "size: [8] [size: 9] (chosen: none)" in chosen.observation.text
    for what in ("wide", "size: 9"):
        assert visit.play(f"click[{what}]").action_valid
    assert (
        "reviews" not in visit.play("click[reviews]").observation.text
    )  # the button, a page of its own
    visit.play("click[< prev]")
    assert visit.play("click[buy now]").success


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "items.json").write_text(json.dumps([ITEM, {**ITEM, "asin": "much too long"}]))
    (tmp_path / "items_ins_v2.json").write_text(json.dumps({"B01": {"attributes": ["waterproof"]}}))
    written = {"instruction": "I want trail shoes.", "instruction_attributes": ["waterproof"], "instruction_options": ["red | blue"]}  # fmt: skip
    (tmp_path / "items_human_ins.json").write_text(json.dumps({"B01": [written]}))
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    return tmp_path


async def test_files_in_webshops_format_make_tasks_that_can_be_solved(data: Path) -> None:
    (params,) = FAMILY.generate(count=1, seed=1, options={"catalogue": {"products": "items.json"}})
    made = task(params)
    assert made.instruction == "I want trail shoes"  # too dear for a limit
    assert made.params["options"] == {"color": "red | blue"}
    environment = FAMILY.make({})
    await environment.reset(made, seed=0)
    gold = FAMILY.gold(made, {})
    assert gold is not None
    results = [await environment.step(response) for response in gold]
    assert results[-1].success


@pytest.mark.parametrize(
    ("break_", "sentence"),
    [
        (lambda folder: (folder / "items.json").unlink(), "No such file"),
        (lambda folder: (folder / "items.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "items.json").write_text("{}"), "expected a JSON list"),
        (lambda folder: (folder / "items.json").write_text('[{"asin": "B"}]'), "item 0: KeyError"),
        (lambda folder: (folder / "items_human_ins.json").write_text("{}"), "no product with an instruction"),
    ],
)  # fmt: skip
def test_broken_files_are_named(data: Path, break_: object, sentence: str) -> None:
    break_(data)  # type: ignore[operator]
    with pytest.raises(InputError, match=sentence):
        FAMILY.generate(count=1, seed=1, options={"catalogue": {"products": "items.json"}})


def test_a_missing_data_folder_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(InputError, match="set WEBSHOP_DATA to the folder"):
        FAMILY.generate(count=1, seed=1, options={"catalogue": {"products": "items.json"}})
