"""Products (a seeded synthetic catalogue, or a user's files in WebShop's format), and the search over them.

The synthetic catalogue is made up for triforge; it holds no shop's data.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any, Final

from environments.shop.product import SEPARATOR, Product
from triforge.errors import InputError

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


DATA: Final = "WEBSHOP_DATA"
"""The environment variable that names the folder with WebShop's files."""

ATTRIBUTES_FILE, HUMAN_FILE = "items_ins_v2.json", "items_human_ins.json"
_LONGEST: Final = 10  # characters of a product's number; WebShop leaves out longer ones
_DEFAULT_PRICE: Final = 100.0  # WebShop's, for products without one


@dataclass(frozen=True)
class Catalogue:
    """Products, their search index, and written instructions (none in a synthetic catalogue)."""

    products: tuple[Product, ...]
    written: tuple[dict[str, Any], ...] = ()

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


def from_files(products: str) -> Catalogue:
    """Read the catalogue of WebShop's own files: `products`, items_ins_v2.json and, if there is one, items_human_ins.json."""
    where = os.environ.get(DATA, "")
    if not where:
        raise InputError(
            f"shop: WebShop's products are not part of triforge; download them with WebShop's setup.sh and set {DATA} to "
            "the folder that holds them, or use a synthetic catalogue"
        )
    return _from_folder(Path(where), products)


@lru_cache(maxsize=1)
def _from_folder(folder: Path, products: str) -> Catalogue:
    items = _read(folder, products, list)
    attributes = _read(folder, ATTRIBUTES_FILE, dict)
    has_human = (folder / HUMAN_FILE).is_file()
    human: dict[str, Any] = _read(folder, HUMAN_FILE, dict) if has_human else {}
    made: dict[str, Product] = {}
    for number, item in enumerate(items):
        try:
            product = _read_product(item, attributes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"shop: {folder / products}: item {number}: {type(error).__name__} {error}; "
                "expected the fields of WebShop's items_shuffle.json"
            ) from error
        if len(product.asin) <= _LONGEST and product.asin != "nan":
            made.setdefault(product.asin, product)
    return Catalogue(tuple(made.values()), _written(made, attributes, human))


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    try:
        document = json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"shop: {folder / name}: {error.strerror}; {DATA} is {folder}") from None
    except ValueError as error:
        raise InputError(f"shop: {folder / name}: not JSON: {error}") from None
    if not isinstance(document, kind):
        raise InputError(f"shop: {folder / name}: expected a JSON {kind.__name__}")
    return document


def _read_product(item: dict[str, Any], attributes: dict[str, Any]) -> Product:
    bullets = item["small_description"]
    options = {
        name.lower(): tuple(
            str(value["value"]).strip().replace("/", " | ").lower() for value in values
        )
        for name, values in (item.get("customization_options") or {}).items()
        if values
    }
    known = attributes.get(item["asin"]) or {}
    return Product(
        asin=str(item["asin"]),
        title=str(item["name"]),
        query=str(item["query"]).lower().strip(),
        category=str(item["product_category"]),
        price=_price(item.get("pricing")),
        attributes=tuple(str(a) for a in known.get("attributes", ())),
        options=options,
        bullets=tuple(map(str, bullets)) if isinstance(bullets, list) else (str(bullets),),
        description=str(item["full_description"]),
    )


def _price(text: str | None) -> float:
    """Return the (lower) price of a tag such as `$12.50` or `$10.00$20.00`."""
    match = re.search(r"\$\s*([0-9][0-9,]*(?:\.[0-9]+)?)", text or "")
    return float(match[1].replace(",", "")) if match else _DEFAULT_PRICE


def _written(
    products: dict[str, Product], attributes: dict[str, Any], human: dict[str, Any]
) -> tuple[dict[str, Any], ...]:
    """Return human instructions, or those that WebShop made, as (asin, text, attributes, options)."""
    written: list[dict[str, Any]] = []
    for asin in products:
        for one in human.get(asin, ()):
            wishes = list(one.get("instruction_attributes") or ())
            options = one.get("instruction_options") or ()
            values = list(options.values()) if isinstance(options, dict) else list(options)
            if wishes:
                text = str(one["instruction"])
                written.append({"asin": asin, "text": text, "attributes": wishes, "values": values})
        known = attributes.get(asin) or {}
        if not human and known.get("instruction") and known.get("instruction_attributes"):
            text, wishes = str(known["instruction"]), list(known["instruction_attributes"])
            written.append({"asin": asin, "text": text, "attributes": wishes, "values": []})
    return tuple(written)
