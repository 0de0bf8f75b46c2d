"""Products of a seeded synthetic catalogue, made up for triforge, and the search over them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Final

from environments.shop.product import SEPARATOR, Product

_K1, _B = 0.9, 0.4  # Lucene's settings in WebShop
_SHOWN: Final = 50  # the most products of a search


class Index:
    """An inverted index over products."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products
        self._counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        for number, product in enumerate(products):
            words = _stems(_document(product))
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._counts[word].append((number, count))
        self._mean = sum(self._lengths) / max(1, len(self._lengths))

    def find(self, keywords: str) -> list[Product]:
        """Return the best matches, best first; at equal scores in the catalogue's order."""
        scores: dict[int, float] = defaultdict(float)
        for word in _stems(keywords):
            hits = self._counts.get(word, ())
            rare = math.log(1 + (len(self._lengths) - len(hits) + 0.5) / (len(hits) + 0.5))
            for number, count in hits:
                norm = _K1 * (1 - _B + _B * self._lengths[number] / self._mean)
                scores[number] += rare * count * (_K1 + 1) / (count + norm)
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._products[number] for number in best[:_SHOWN]]


def _document(product: Product) -> str:
    options = (value for values in product.options.values() for value in values)
    return " ".join((product.text, *product.attributes, *options, product.query))


def _stems(text: str) -> list[str]:
    """Return the words of a text without their plural s."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product: its department, possible attributes and uses, sizes, and span of prices."""

    name: str
    department: str
    attributes: tuple[str, ...]
    uses: tuple[str, ...]
    sizes: tuple[str, ...]
    price: tuple[float, float]


_CLOTHES = ("small", "medium", "large", "x-large")
_SHOES = ("6", "7", "8", "9", "10")

KINDS: Final = (
    Kind("running shoes", "sports", ("lightweight", "breathable mesh", "rubber sole", "slip resistant", "wide fit", "quick lacing"), ("for long runs", "for the gym", "for trails"), _SHOES, (25, 140)),
    Kind("rain jacket", "clothing", ("waterproof", "windproof", "hooded", "machine washable", "packable", "reflective"), ("for hiking", "for cycling", "for travel"), _CLOTHES, (20, 160)),
    Kind("wool sweater", "clothing", ("hand knitted", "crew neck", "long sleeve", "machine washable", "merino", "ribbed"), ("for winter", "for the office"), _CLOTHES, (25, 120)),
    Kind("desk lamp", "home", ("dimmable", "energy saving", "flexible neck", "touch control", "usb charging", "clamp mounted"), ("for reading", "for studios"), (), (12, 90)),
    Kind("office chair", "home", ("ergonomic", "height adjustable", "lumbar support", "mesh back", "easy to assemble", "padded armrests"), ("for home offices", "for gaming"), (), (60, 380)),
    Kind("water bottle", "kitchen", ("stainless steel", "leak proof", "vacuum insulated", "bpa free", "wide mouth", "dishwasher safe"), ("for school", "for camping"), ("12 ounce", "20 ounce", "32 ounce"), (8, 45)),
    Kind("frying pan", "kitchen", ("non stick", "cast iron", "oven safe", "induction ready", "heat resistant handle", "dishwasher safe"), ("for eggs", "for families"), ("8 inch", "10 inch", "12 inch"), (14, 95)),
    Kind("green tea", "grocery", ("organic", "caffeine free", "sugar free", "loose leaf", "fair trade", "individually wrapped"), ("for mornings", "for gifts"), ("20 bags", "50 bags", "100 bags"), (5, 40)),
    Kind("dog bed", "pets", ("orthopedic", "washable cover", "chew resistant", "non slip bottom", "memory foam", "cooling"), ("for older dogs", "for puppies"), _CLOTHES, (18, 130)),
    Kind("bluetooth speaker", "electronics", ("water resistant", "long battery life", "hands free", "deep bass", "compact", "dust proof"), ("for parties", "for the shower"), (), (15, 180)),
    Kind("phone case", "electronics", ("shock absorbing", "slim fit", "wireless charging compatible", "scratch resistant", "with card holder", "clear back"), ("for commuters", "for everyday"), (), (6, 35)),
    Kind("face cream", "beauty", ("fragrance free", "cruelty free", "for sensitive skin", "oil free", "with vitamin c", "paraben free"), ("for the night", "for dry days"), ("1 ounce", "2 ounce", "4 ounce"), (7, 70)),
)  # fmt: skip

BRANDS: Final = (
    "Alderby", "Brookvale", "Corvane", "Dunmere", "Estral", "Fennick", "Galdor", "Harrowin",
    "Ilsker", "Jorvane",
)  # fmt: skip
COLOURS: Final = ("black", "blue", "brown", "green", "grey", "orange", "purple", "red", "white", "yellow")  # fmt: skip
PRAISE: Final = ("made to last", "tested with care", "a joy to use", "better than it looks", "worth its price")  # fmt: skip


@dataclass(frozen=True)
class Catalogue:
    """Products and their search index."""

    products: tuple[Product, ...]

    @cached_property
    def by_asin(self) -> dict[str, Product]:
        return {product.asin: product for product in self.products}

    @cached_property
    def index(self) -> Index:
        return Index(self.products)


@lru_cache(maxsize=4)
def synthetic(seed: int, size: int) -> Catalogue:
    """Draw a catalogue from lists of our own; same seed and size, same products."""
    return Catalogue(tuple(_product(seed, number) for number in range(size)))


def _product(seed: int, number: int) -> Product:
    rng = Random(f"shop {seed} {number}")  # noqa: S311
    kind = rng.choice(KINDS)
    attributes = tuple(rng.sample(kind.attributes, rng.randint(2, 4)))
    brand = rng.choice(BRANDS)
    options = {"color": tuple(sorted(rng.sample(COLOURS, rng.randint(2, 5))))}
    if kind.sizes:
        options["size"] = tuple(kind.sizes)
    return Product(
        asin=f"B{seed % 1000:03d}{number:06d}",
        title=f"{brand} {attributes[0]} {kind.name}, {attributes[1]}, {rng.choice(kind.uses)}",
        query=kind.name,
        category=f"{kind.department} {SEPARATOR} {kind.name}",
        price=round(rng.uniform(*kind.price), 2),
        attributes=attributes,
        options=options,
        bullets=tuple(f"{attribute}: {rng.choice(PRAISE)}" for attribute in attributes),
        description=f"{brand} makes {kind.name} {rng.choice(kind.uses)}; {rng.choice(PRAISE)}.",
        reviews=(f"{rng.randint(3, 5)} of 5 stars: {rng.choice(PRAISE)}",),
    )
