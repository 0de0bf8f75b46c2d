"""What the synthetic catalogue is drawn from. Every word here is made up for triforge; no shop's data is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product: where it stands, what it may be like, what it is for, its sizes and its span of prices."""

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
    "Alderby",
    "Brookvale",
    "Corvane",
    "Dunmere",
    "Estral",
    "Fennick",
    "Galdor",
    "Harrowin",
    "Ilsker",
    "Jorvane",
)
COLOURS: Final = ("black", "blue", "brown", "green", "grey", "orange", "purple", "red", "white", "yellow")  # fmt: skip
PRAISE: Final = ("made to last", "tested with care", "a joy to use", "better than it looks", "worth its price")  # fmt: skip
