"""A visit to the shop: which page is open, what can be clicked there, what was bought."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from environments.shop.catalogue import Catalogue
from environments.shop.product import Goal, Product, score
from triforge.environments.answers import HOW_TO_ANSWER, Answer, part_of
from triforge.rollout.protocols import Observation, Reset, StepResult

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
    """What is clicked for each option: its value, or `name: value` where the value alone could mean something else, too."""
    pairs = [
        (name, value) for name, values in product.options.items() for value in dict.fromkeys(values)
    ]
    meanings = Counter([value for _, value in pairs] + list(_BUTTONS))
    return {
        value if meanings[value] == 1 else f"{name}: {value}": (name, value)
        for name, value in pairs
    }


class ShopEpisode:
    """A visit that is going on."""

    def __init__(
        self, catalogue: Catalogue, goal: Goal, instruction: str, answer: Answer, horizon: int, *, guide: bool
    ) -> None:  # fmt: skip
        self.done = False
        self._catalogue = catalogue
        self._goal = goal
        self._instruction = instruction
        self._answer = answer
        self._left = horizon
        self._guide = guide
        self._found: list[Product] = []
        self._page = 0
        self._open: Product | None = None
        self._look = ""
        self._chosen: dict[str, str] = {}
        self._searching = True

    def start(self) -> Reset:
        """The task and the search page."""
        told = HOW_TO_ANSWER[self._answer].format(what="one action")
        return Reset(
            observation=self._observe(f"Instruction: {self._instruction}"),
            system=_GUIDE.format(answer=told) if self._guide else "",
        )

    def play(self, response: str) -> StepResult:
        """Play one action; what cannot be read or clicked changes nothing and costs the turn."""
        said = part_of(response, self._answer).strip()
        read = _ACTION.fullmatch(said)
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
            action=said[:500],
            action_valid=valid,
            done=self.done,
            success=reward is not None and reward >= 1.0,
        )

    def _search(self, keywords: str) -> None:
        self._found, self._page = self._catalogue.index.find(keywords), 0
        self._searching = False

    def _click(self, what: str) -> float | None:
        """The score when it was `buy now`, else None."""
        if what == BACK:
            self._searching, self._open, self._look, self._chosen = True, None, "", {}
        elif what in (NEXT, PREVIOUS):
            self._turn(what)
        elif self._open is None:
            self._open = next(found for found in self._shown() if found.asin.lower() == what)
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
            told = {
                "description": (product.description,),
                "features": product.bullets,
                "reviews": product.reviews,
            }[self._look]
            return [buttons, *(told or ("None.",))]
        offered = labels(product)
        rows = [
            f"{name}: {' '.join(f'[{label}]' for label, (of, _) in offered.items() if of == name)} "
            f"(chosen: {self._chosen.get(name, 'none')})"
            for name in product.options
        ]
        return [buttons, product.title, f"Price: ${product.price:.2f}", *rows]
