"""A product, a goal, and the score of a purchase."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Final

SEPARATOR: Final = "\u203a"  # of a category's path in WebShop's files
_ALIKE: Final = 0.85  # above it two phrases mean the same
_EXACT: Final = ("size",)  # options that are compared letter by letter
_WEAK: Final = {
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on",
    "or", "pack", "set", "that", "the", "this", "to", "with", "your",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A product for sale. `category` is a path such as `shoes > running` with `SEPARATOR` between its parts, `price` is in dollars."""

    asin: str
    title: str
    query: str
    category: str
    price: float
    attributes: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bullets: tuple[str, ...] = ()
    description: str = ""
    reviews: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All text that may mention an attribute, in lower case."""
        return " ".join((self.title, *self.bullets, self.description)).lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A purchase to make: a product like `asin`, with these attributes and options, for at most `price_upper`."""

    asin: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_upper: float


def score(bought: Product, chosen: Mapping[str, str], goal: Goal, wanted: Product) -> float:
    """Return WebShop's reward of a purchase, in [0, 1] (Yao et al. 2022, section 3.1).

    r_type * (matching attributes + matching options + price is low enough) / (attributes + options + 1)
    """
    attributes = sum(_has(bought, wish) for wish in goal.attributes)
    options = sum(_chosen(bought, name, value, goal) for name, value in chosen.items())
    options = min(options, len(goal.options))
    price = bought.price <= goal.price_upper
    of = len(goal.attributes) + len(goal.options) + 1
    return type_score(bought, wanted) * (attributes + options + price) / of


def type_score(bought: Product, wanted: Product) -> float:
    """Return how much the kind of product is right: 1, 0.5, 0.1 or 0.

    WebShop compares the nouns of the titles, found by a language model; here all words but the commonest count.
    """
    words, wished = _content(bought.title), _content(wanted.title)
    overlap = len(words & wished) / len(wished) if wished else 0.2
    if overlap == 0.0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    paths = [{part.strip() for part in p.category.split(SEPARATOR)} for p in (bought, wanted)]
    same = bought.query == wanted.query or len(paths[0] & paths[1]) >= 2
    return 1.0 if same or overlap > 0.2 else 0.5


def alike(a: str, b: str) -> float:
    """Return how much two phrases have in common as sets of words, 0 to 1; 1 when one contains the other."""
    first, second = set(_words(a)), set(_words(b))
    shared = " ".join(sorted(first & second))
    whole = [
        " ".join(filter(None, (shared, *sorted(s - (first & second))))) for s in (first, second)
    ]
    pairs = [(whole[0], whole[1])]
    if shared:
        pairs += [(shared, whole[0]), (shared, whole[1])]
    return max(SequenceMatcher(None, x, y).ratio() for x, y in pairs)


def _has(product: Product, wish: str) -> bool:
    known = any(alike(attribute, wish) > _ALIKE for attribute in product.attributes)
    return known or wish.lower() in product.text


def _chosen(product: Product, name: str, value: str, goal: Goal) -> bool:
    if name.lower() in _EXACT:
        matches = value in goal.options.values()
    else:
        matches = any(alike(wish, value) > _ALIKE for wish in goal.options.values())
    return matches or value.lower() in product.text


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _content(text: str) -> set[str]:
    return {word for word in _words(text) if word not in _WEAK and not word.isdigit()}
