"""Engines and learners on cards.

The document's own choices stand. What it leaves open gets the fewest cards that hold it, and those that are over go one by one to the
phase that they shorten most. With too few cards engines share some and learners the others; one card is shared in turns (`run.colocate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from triforge.errors import ConfigError
from triforge.planning.cards import Card
from triforge.planning.memory import (
    FRACTION,
    USABLE,
    EngineMemory,
    LearnerMemory,
    cache_per_token,
    engine_weights,
)
from triforge.planning.shapes import ModelShape

_PARALLEL: Final = (1, 2, 4, 8)  # cards of an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeed:
    """A model that is served: `tokens` of cache are the least, those of one row."""

    role: str
    shape: ModelShape
    tokens: int
    gpus: tuple[int, ...] = ()
    replicas: int = 0
    tensor_parallel: int = 0
    seconds: float = 0.0  # of a step, on one card

    @property
    def multiple(self) -> int:
        """Cards that it has, or several times as many."""
        return max(1, self.replicas) * max(1, self.tensor_parallel)

    @property
    def fixed(self) -> bool:
        """Whether the document says how many cards it has."""
        return bool(self.gpus or self.replicas)

    @property
    def section(self) -> str:
        """Its place in the document."""
        return f"models.{self.role}"

    def least(self, parallel: int) -> float:
        """Return the bytes that one engine needs on each of its cards."""
        cache = self.tokens * cache_per_token(self.shape, parallel)
        return engine_weights(self.shape, parallel) + cache


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerNeed:
    """A model that is trained; `memory` gives the bytes of each of so many ranks."""

    role: str
    memory: Callable[[int], LearnerMemory]
    gpus: tuple[int, ...] = ()
    ranks: int = 0
    seconds: float = 0.0  # of a step, on one card

    @property
    def multiple(self) -> int:
        """Cards that it has, or several times as many."""
        return max(1, self.ranks)

    @property
    def fixed(self) -> bool:
        """Whether the document says how many cards it has."""
        return bool(self.gpus or self.ranks)

    @property
    def section(self) -> str:
        """Its place in the document."""
        return f"trainer.{self.role}"

    def on(self, cards: tuple[int, ...], ranks: int) -> Learner:
        """Return the learner on some cards."""
        return Learner(role=self.role, cards=cards, ranks=ranks, memory=self.memory(ranks))


Need = EngineNeed | LearnerNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One server, which listens on one port; it may fill `memory_fraction` of each of its cards."""

    role: str
    cards: tuple[int, ...]
    tensor_parallel: int
    memory_fraction: float
    memory: EngineMemory
    cache_tokens: int  # that its cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The ranks that train one model, one a card; without cards they are processes on the CPU."""

    role: str
    cards: tuple[int, ...]
    ranks: int
    memory: LearnerMemory


Placed = tuple[tuple[Engine, ...], tuple[Learner, ...]]


def place(
    engines: Sequence[EngineNeed], learners: Sequence[LearnerNeed], cards: Sequence[Card], *, colocate: bool
) -> Placed | None:  # fmt: skip
    """Return where all of it goes; None if it does not fit. ConfigError: the document's own choice is impossible."""
    box = _Box({card.index: card for card in cards}, tuple(engines), tuple(learners))
    if not cards:
        served = (box.engine(need, (), 0.0) for need in engines)
        return tuple(served), tuple(need.on((), need.ranks or 1) for need in learners)
    for need in box.needs:
        _demand_cards(need, box.cards)
    numbers = tuple(box.cards)
    if colocate:
        return box.shared(numbers[:1], numbers[:1])
    parts = (box.shared(numbers[:n], numbers[n:]) for n in range(1, len(numbers)))
    return box.apart() or next(filter(None, parts), None)


def _demand_cards(need: Need, cards: Mapping[int, Card]) -> None:
    where = f"{need.section}.gpus: given {list(need.gpus)}"
    if missing := [card for card in need.gpus if card not in cards]:
        raise ConfigError(
            f"{where}, expected some of {list(cards)}: card {missing[0]} is not there"
        )
    if len(need.gpus) % need.multiple:
        raise ConfigError(
            f"{where}, expected a multiple of {need.multiple} cards, as its other options say"
        )


@dataclass(frozen=True, slots=True)
class _Box:
    """The cards of a machine by number, and what is to go on them."""

    cards: Mapping[int, Card]
    engines: tuple[EngineNeed, ...]
    learners: tuple[LearnerNeed, ...]

    @property
    def needs(self) -> tuple[Need, ...]:
        """All that is to be placed."""
        return (*self.engines, *self.learners)

    def apart(self) -> Placed | None:
        """Give every engine and every rank cards of its own; those that are over go where they save most time."""
        needs = self.needs
        unit: dict[Need, int] = {need: self._parallel(need) for need in self.engines}
        unit |= dict.fromkeys(self.learners, 1)
        size: dict[Need, int] = {
            n: len(n.gpus) or unit[n] * max(1, n.replicas) for n in self.engines
        }
        size |= {need: len(need.gpus) or self._ranks(need) for need in self.learners}
        free = [card for card in self.cards if not any(card in need.gpus for need in needs)]
        spare = len(free) - sum(size[need] for need in needs if not need.gpus)
        if (
            spare < 0
            or not all(unit.values())
            or any(not n or n % unit[need] for need, n in size.items())
        ):
            return None

        def gain(need: Need) -> float:
            now, more = size[need], unit[need]
            return need.seconds * (1 / now - 1 / (now + more)) / more

        growing = [need for need in needs if not need.fixed]
        while wider := [need for need in growing if unit[need] <= spare]:
            grown = max(wider, key=gain)
            size[grown] += unit[grown]
            spare -= unit[grown]
        own = {need: need.gpus or tuple(free.pop(0) for _ in range(size[need])) for need in needs}
        servers = (
            self.engine(need, own[need][at : at + unit[need]], FRACTION)
            for need in self.engines
            for at in range(0, size[need], unit[need])
        )
        trained = tuple(need.on(own[need], size[need]) for need in self.learners)
        fits = all(one.memory.total <= USABLE * self._room(one.cards) for one in trained)
        return (tuple(servers), trained) if fits else None

    def shared(self, serving: tuple[int, ...], training: tuple[int, ...]) -> Placed | None:
        """Put all engines on some cards, and all learners on others or, in turns, on the same one."""
        if any(need.gpus for need in self.needs):
            return None
        homes: dict[int, list[EngineNeed]] = {card: [] for card in serving}
        for need in sorted(self.engines, key=lambda n: -n.least(1)):
            homes[min(homes, key=lambda c: sum(n.least(1) for n in homes[c]))].append(need)
        servers: list[Engine] = []
        for card, held in homes.items():
            size, least = self.cards[card].memory, sum(n.least(1) for n in held)
            if least > size * FRACTION or any(need.multiple > 1 for need in held):
                return None
            for need in held:  # what is over is shared evenly
                share = (need.least(1) + (size * FRACTION - least) / len(held)) / size
                servers.append(self.engine(need, (card,), share))
        trained = tuple(need.on(training, len(training)) for need in self.learners)
        sizes = [one.memory.total for one in trained]
        peak = max(sizes) if serving == training else sum(sizes)  # in turns, one at a time
        fits = peak <= USABLE * self._room(training)
        given = all(need.ranks in (0, len(training)) for need in self.learners)
        return (tuple(servers), trained) if fits and given else None

    def engine(self, need: EngineNeed, cards: tuple[int, ...], share: float) -> Engine:
        """Return an engine that may fill a `share` of each of its cards."""
        parallel = max(1, len(cards))
        wider = 1 if cards else 2  # float32 on a CPU
        weights = wider * engine_weights(need.shape, parallel)
        cell = wider * cache_per_token(need.shape, parallel)
        cache = max(0.0, self._room(cards) * share - weights) if cards else need.tokens * cell
        return Engine(
            role=need.role, cards=cards, tensor_parallel=parallel, memory_fraction=round(share, 3),
            memory=EngineMemory(weights=weights, kv_cache=cache), cache_tokens=int(cache / cell),
        )  # fmt: skip

    def _room(self, cards: Iterable[int]) -> float:
        return min(self.cards[card].memory for card in cards)

    def _parallel(self, need: EngineNeed) -> int:
        """Return the fewest cards of one engine; 0 if no number holds it."""
        room, most = FRACTION * self._room(self.cards), len(self.cards)
        allowed = [need.tensor_parallel] if need.tensor_parallel else _PARALLEL
        fits = (n for n in allowed if need.shape.heads % n == 0 and need.least(n) <= room)
        return next((n for n in fits if n <= most), 0)

    def _ranks(self, need: LearnerNeed) -> int:
        """Return the fewest ranks that hold a learner; 0 if no number does."""
        room = USABLE * self._room(self.cards)
        allowed = [need.ranks] if need.ranks else range(1, len(self.cards) + 1)
        return next((n for n in allowed if need.memory(n).total <= room), 0)
