"""The shop as an environment family: its pages, its buttons, and the purchase."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Annotated, Final

from pydantic import Field

from environments.shop.catalogue import Catalogue, synthetic
from environments.shop.product import Goal, Product, score
from triforge.environments.kit import (
    AnswerOptions,
    Family,
    Strict,
    parse_model,
    part_of,
    wrapped,
)
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Params

PAGE: Final = 10  # products a page of results
BUY, NEXT, PREVIOUS, BACK = "buy now", "next >", "< prev", "back to search"
_LOOKS: Final = ("description", "features", "reviews")
_BUTTONS: Final = (BACK, NEXT, PREVIOUS, *_LOOKS, BUY)
_ACTION: Final = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)
_GUIDE: Final = (
    "You shop online. Actions are search[keywords] on the search page, and click[what] for a button, a product number or an "
    "option that the page shows. Find what is asked for, choose its options, then click[buy now]: that ends the visit. {answer}"
)


def labels(product: Product) -> dict[str, tuple[str, str]]:
    """Return name and value of each option by its value."""
    return {value: (name, value) for name, values in product.options.items() for value in values}


class ShopEpisode:
    """A visit that is going on."""

    def __init__(
        self,
        catalogue: Catalogue,
        goal: Goal,
        instruction: str,
        options: AnswerOptions,
        horizon: int,
    ) -> None:
        self.done = False
        self._catalogue = catalogue
        self._goal = goal
        self._instruction = instruction
        self._options = options
        self._left = horizon
        self._found: list[Product] = []
        self._page = 0
        self._open: Product | None = None
        self._look = ""
        self._chosen: dict[str, str] = {}
        self._searching = True

    def start(self) -> Reset:
        return Reset(
            observation=self._observe(f"Instruction: {self._instruction}"),
            system=self._options.system(_GUIDE, "one action"),
        )

    def play(self, response: str) -> StepResult:
        text = part_of(response, self._options.answer).strip()
        read = _ACTION.fullmatch(text)
        verb, what = (read[1], read[2].strip().lower()) if read else ("", "")
        valid = self._searching if verb == "search" and what else what in self._clickable()
        reward: float | None = None
        if verb == "search" and valid:
            self._search(what)
        elif verb == "click" and valid:
            reward = self._click(what)
        else:
            valid = False
        self._left -= 1
        self.done = reward is not None or self._left == 0
        above = "" if valid else "Nothing happens."
        if reward is not None:
            above = f"Thank you for shopping. Your score (0 to 1): {reward:.4g}"
        return StepResult(
            observation=Observation(text=above) if reward is not None else self._observe(above),
            action=text[:500],
            action_valid=valid,
            done=self.done,
            success=reward is not None and reward >= 1.0,
        )

    def _search(self, keywords: str) -> None:
        self._found, self._page = self._catalogue.index.find(keywords), 0
        self._searching = False

    def _click(self, what: str) -> float | None:
        """Click a button; return the score after `buy now`, else None."""
        if what == BACK:
            self._searching, self._open, self._look, self._chosen = True, None, "", {}
        elif what in (NEXT, PREVIOUS):
            self._turn(what)
        elif self._open is None:
            self._open = next(product for product in self._shown() if product.asin.lower() == what)
            self._chosen = {}
        elif what == BUY:
            wanted = self._catalogue.by_asin[self._goal.asin]
            return score(self._open, self._chosen, self._goal, wanted)
        elif what in _LOOKS:
            self._look = what
        else:
            name, value = labels(self._open)[what]
            self._chosen[name] = value
        return None

    def _turn(self, what: str) -> None:
        if self._look:
            self._look = ""
        elif self._open is not None:
            self._open, self._chosen = None, {}
        else:
            self._page += 1 if what == NEXT else -1

    def _clickable(self) -> list[str]:
        if self._searching:
            return []
        if self._look:
            return [BACK, PREVIOUS]
        if self._open is not None:
            return [BACK, PREVIOUS, *_LOOKS, BUY, *labels(self._open)]
        shown = [product.asin.lower() for product in self._shown()]
        turns = [NEXT] if (self._page + 1) * PAGE < len(self._found) else []
        return [BACK, *turns, *([PREVIOUS] if self._page else []), *shown]

    def _shown(self) -> list[Product]:
        return self._found[self._page * PAGE : (self._page + 1) * PAGE]

    def _observe(self, above: str) -> Observation:
        if self.done:
            return Observation(text=above or "The visit is over.")
        clicks = tuple(f"click[{what}]" for what in self._clickable())
        if self._searching:
            words = re.sub(r"[^a-z0-9 ]+", " ", self._instruction.lower()).split()
            clicks = (f"search[{' '.join(words[:40])}]",)
        return Observation(text="\n".join(filter(None, (above, *self._lines()))), admissible=clicks)

    def _lines(self) -> list[str]:
        buttons = " ".join(f"[{what}]" for what in self._clickable()[:6] if what in _BUTTONS)
        if self._searching:
            return ["Search page: search[keywords]"]
        if self._open is None:
            pages = max(1, -(-len(self._found) // PAGE))
            head = f"{buttons}\nPage {self._page + 1} of {pages}, {len(self._found)} products"
            return [head, *(f"[{p.asin.lower()}] {p.title} ${p.price:.2f}" for p in self._shown())]
        product = self._open
        if self._look:
            texts = {
                "description": (product.description,),
                "features": product.bullets,
                "reviews": product.reviews,
            }[self._look]
            return [buttons, *(texts or ("None.",))]
        offered = labels(product)
        rows = [
            f"{name}: {' '.join(f'[{label}]' for label, (of, _) in offered.items() if of == name)} "
            f"(chosen: {self._chosen.get(name, 'none')})"
            for name in product.options
        ]
        return [buttons, product.title, f"Price: ${product.price:.2f}", *rows]


_NO_LIMIT: Final = 1_000_000.0  # WebShop's, for products dearer than it can name a price for


class Source(Strict):
    """A catalogue."""

    seed: int = Field(default=0, ge=0)
    size: int = Field(default=300, ge=10, le=20_000)
    products: None = None  # stored pools have it

    def load(self) -> Catalogue:
        """Return the catalogue; the last ones are kept in memory."""
        return synthetic(self.seed, self.size)


class VisitParams(Strict):
    """The product to buy: its number, attributes, options and highest price, and its catalogue."""

    catalogue: Source = Field(default_factory=Source)
    asin: str = Field(min_length=1, max_length=10)
    attributes: Annotated[list[str], Field(min_length=1, max_length=20)]
    options: dict[str, str] = Field(default_factory=dict)
    price_upper: float = Field(default=_NO_LIMIT, gt=0)
    text: str | None = Field(default=None, min_length=1, max_length=2000)
    horizon: int = Field(default=15, ge=3, le=200)


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    catalogue: Source = Field(default_factory=Source)
    attributes: int = Field(default=2, ge=1, le=10)
    options: int = Field(default=2, ge=0, le=10)
    horizon: int = Field(default=15, ge=3, le=200)


class ShopFamily(Family[VisitParams, AnswerOptions]):
    """The family `shop`; README.md explains it."""

    name = "shop"
    about = About(
        what="search a shop for what a sentence describes, choose options, buy; WebShop's task and score",
        tasks="generated over a synthetic catalogue",
        licence="Apache-2.0 (own)",
        papers="EnvRL (there: WebShop)",
        steps_per_s=3_100,
    )
    never_blocks = True  # episodes have threads of their own: an index takes a while
    blocks = ThreadPoolExecutor(2, thread_name_prefix="shop")
    params, play_options = VisitParams, AnswerOptions

    def instruction(self, given: VisitParams) -> str:
        price = ""
        if given.price_upper < _NO_LIMIT:
            price = f", and price lower than {given.price_upper:.2f} dollars"
        product = _product(given)
        if given.text is not None:
            return given.text.strip().rstrip(".") + price
        options = "".join(f", with {name} {value}" for name, value in given.options.items())
        return f"Find me {product.query} that are {', '.join(given.attributes)}{options}{price}."

    def kind(self, given: VisitParams) -> str:
        return _product(given).query

    def check(self, given: VisitParams) -> None:
        """Refuse a visit that cannot earn the full score."""
        product = _product(given)
        full = score(product, given.options, _goal(given), product)
        if full < 1.0:
            raise InputError(
                f"shop params: buying {given.asin} with these options scores {full:.3g}, expected 1; change attributes, options "
                "or price_upper"
            )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "shop generate")
        catalogue = wanted.catalogue.load()
        seeded = (Random(f"shop visit {seed} {index}") for index in range(count))  # noqa: S311
        return [_generate(wanted, catalogue, rng) for rng in seeded]

    def begin(
        self, given: VisitParams, options: AnswerOptions, announced: str, _seed: int
    ) -> ShopEpisode:
        return ShopEpisode(given.catalogue.load(), _goal(given), announced, options, given.horizon)

    def solution(self, given: VisitParams, options: AnswerOptions) -> Sequence[str] | None:
        """Search for the product's own title, open it, choose, buy; None when the search does not find it in time."""
        product = _product(given)
        results = given.catalogue.load().index.find(product.title)
        if product not in results:
            return None
        turns = [f"click[{NEXT}]"] * (results.index(product) // PAGE)
        wanted = set(given.options.items())
        choices = [f"click[{label}]" for label, pair in labels(product).items() if pair in wanted]
        plan = [f"search[{product.title}]", *turns, f"click[{product.asin.lower()}]", *choices]
        plan.append(f"click[{BUY}]")
        return [wrapped(a, options.answer) for a in plan] if len(plan) <= given.horizon else None

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for up to d + 1 attributes and d options among 100 (d + 1) products at level d."""
        size: Params = {"seed": 0, "size": min(5000, 100 * (level + 1))}
        wishes: Params = {"attributes": min(10, level + 1), "options": min(10, level)}
        return {"catalogue": size, **options, **wishes}


def _product(given: VisitParams) -> Product:
    product = given.catalogue.load().by_asin.get(given.asin)
    if product is None:
        raise InputError(f"shop params: field asin: {given.asin!r} is not in the catalogue")
    for name, value in given.options.items():
        if value not in product.options.get(name, ()):
            raise InputError(
                f"shop params: field options.{name}: {given.asin} is not sold with {value!r}"
            )
    return product


def _goal(given: VisitParams) -> Goal:
    return Goal(
        asin=given.asin,
        attributes=tuple(given.attributes),
        options=given.options,
        price_upper=given.price_upper,
    )


def _generate(wanted: GeneratorOptions, catalogue: Catalogue, rng: Random) -> Params:
    source = wanted.catalogue.model_dump(mode="json")
    product = rng.choice(catalogue.products)
    attributes = rng.sample(product.attributes, min(wanted.attributes, len(product.attributes)))
    names = rng.sample(sorted(product.options), min(wanted.options, len(product.options)))
    return {
        "catalogue": source,
        "asin": product.asin,
        "attributes": list(attributes),
        "options": {name: rng.choice(product.options[name]) for name in sorted(names)},
        "price_upper": _upper(product.price, rng),
        "horizon": wanted.horizon,
    }


def _upper(price: float, rng: Random) -> float:
    """Draw the highest price as WebShop does: the larger of two of the next four multiples of ten dollars."""
    above = [10.0 * step for step in range(1, 100) if 10.0 * step > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else _NO_LIMIT


FAMILY: Final[ShopFamily] = ShopFamily()
