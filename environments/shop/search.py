"""The shop's search engine: BM25 over title, bullets, description, attributes and options."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from environments.shop.product import Product

_K1, _B = 0.9, 0.4  # Lucene's settings in WebShop
_SHOWN: Final = 50  # products that a search finds at most


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
        """The best matches, best first; at equal scores in the catalogue's order."""
        scores: dict[int, float] = defaultdict(float)
        for word in _stems(keywords):
            found = self._counts.get(word, ())
            rare = math.log(1 + (len(self._lengths) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                norm = _K1 * (1 - _B + _B * self._lengths[number] / self._mean)
                scores[number] += rare * count * (_K1 + 1) / (count + norm)
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._products[number] for number in best[:_SHOWN]]


def _document(product: Product) -> str:
    options = (value for values in product.options.values() for value in values)
    return " ".join((product.text, *product.attributes, *options, product.query))


def _stems(text: str) -> list[str]:
    """The words of a text without their plural s."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]
