"""Where products come from: a seeded synthetic catalogue, or a user's files in WebShop's format."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

from environments.shop.kinds import BRANDS, COLOURS, KINDS, PRAISE
from environments.shop.product import SEPARATOR, Product
from environments.shop.search import Index
from triforge.errors import InputError

DATA: Final = "WEBSHOP_DATA"
"""The environment variable that names the folder with WebShop's files."""

ATTRIBUTES_FILE, HUMAN_FILE = "items_ins_v2.json", "items_human_ins.json"
_LONGEST: Final = 10  # characters of a product's number; WebShop leaves out longer ones
_DEFAULT_PRICE: Final = 100.0  # WebShop's, for products without one


@dataclass(frozen=True)
class Catalogue:
    """Products, their search index, and the instructions that people wrote for them (none in a synthetic one)."""

    products: tuple[Product, ...]
    written: tuple[dict[str, Any], ...] = ()

    @cached_property
    def by_asin(self) -> dict[str, Product]:
        """Products by their number."""
        return {product.asin: product for product in self.products}

    @cached_property
    def index(self) -> Index:
        """The search engine."""
        return Index(self.products)


class Shelf:
    """The catalogues that were used last: as many as have `room` products together, and at least one."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: OrderedDict[tuple[object, ...], Catalogue] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...], make: Callable[[], Catalogue]) -> Catalogue:
        """The catalogue of a key; made once, also where several threads ask for it. Raises what `make` raises."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._products() > self._room:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _products(self) -> int:
        return sum(len(one.products) for one in self._kept.values())


KEPT: Final = Shelf(50_000)


def synthetic(seed: int, size: int) -> Catalogue:
    """A catalogue that is drawn from lists of our own; same seed and size, same products."""
    return KEPT.get(
        (seed, size), lambda: Catalogue(tuple(_product(seed, number) for number in range(size)))
    )


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
    """The catalogue of WebShop's own files: `products`, items_ins_v2.json and, if there is one, items_human_ins.json."""
    where = os.environ.get(DATA, "")
    if not where:
        raise InputError(
            f"shop: WebShop's products are not part of triforge; download them with WebShop's setup.sh and set {DATA} to "
            "the folder that holds them, or use a synthetic catalogue"
        )
    return KEPT.get((where, products), lambda: _from_folder(Path(where), products))


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
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"shop: {folder / name}: {error.strerror}; {DATA} is {folder}") from None
    except ValueError as error:
        raise InputError(f"shop: {folder / name}: not JSON: {error}") from None
    if not isinstance(found, kind):
        raise InputError(f"shop: {folder / name}: expected a JSON {kind.__name__}")
    return found


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
    """The (lower) price of a tag such as `$12.50` or `$10.00$20.00`."""
    found = re.findall(r"\$\s*([0-9][0-9,]*(?:\.[0-9]+)?)", text or "")
    return float(found[0].replace(",", "")) if found else _DEFAULT_PRICE


def _written(
    products: dict[str, Product], attributes: dict[str, Any], human: dict[str, Any]
) -> tuple[dict[str, Any], ...]:
    """The instructions of people, or those that WebShop made, as (asin, text, attributes, options)."""
    found: list[dict[str, Any]] = []
    for asin in products:
        for one in human.get(asin, ()):
            wishes = list(one.get("instruction_attributes") or ())
            options = one.get("instruction_options") or ()
            values = list(options.values()) if isinstance(options, dict) else list(options)
            if wishes:
                found.append(
                    {
                        "asin": asin,
                        "text": str(one["instruction"]),
                        "attributes": wishes,
                        "values": values,
                    }
                )
        known = attributes.get(asin) or {}
        if not human and known.get("instruction") and known.get("instruction_attributes"):
            text, wishes = str(known["instruction"]), list(known["instruction_attributes"])
            found.append({"asin": asin, "text": text, "attributes": wishes, "values": []})
    return tuple(found)
