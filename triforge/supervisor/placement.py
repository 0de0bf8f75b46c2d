"""The cards of each engine and each learner that a deployment starts, as its plan says."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path

from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.planning.cards import Card, find_cards
from triforge.planning.memory import FRACTION, GIB
from triforge.planning.plan import make_plan
from triforge.planning.shapes import ModelShape
from triforge.types import Role


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The cards of one engine or learner.

    Attributes:
        cards: their numbers in `nvidia-smi`; None where nothing was divided, and a process sees all.
        memory: share of each card that an engine may fill.
        held: bytes of each card that are planned for.
        alone: whether no other engine has the card; engines that share one begin one after the other.
        ranks: processes of a learner.
    """

    cards: tuple[int, ...] | None = None
    memory: float = FRACTION
    held: float = 0.0
    alone: bool = True
    ranks: int = 1

    @property
    def env(self) -> dict[str, str]:
        """The variables that show a process its cards alone."""
        if self.cards is None:
            return {}
        shown = ",".join(map(str, self.cards))
        return {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The seats of a deployment by role, engines in the order in which they start; of an engine there are as many as it has servers."""

    engines: dict[Role, list[Seat]] = field(default_factory=dict)
    learners: dict[Role, Seat] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield what people read of it; nothing where nothing was divided."""
        servers = [
            (f"engine of {role}", seat) for role, seats in self.engines.items() for seat in seats
        ]
        learners = [(f"learner of {role}", seat) for role, seat in self.learners.items()]
        for name, seat in (*servers, *learners):
            if seat.cards is not None:
                ranks = f", {seat.ranks} ranks" * (seat.ranks > 1)
                ranks += f", {seat.held / GIB:.3g} GiB of each" * bool(seat.held)
                where = _named(seat.cards) if seat.cards else "the CPU"
                yield f"{name}: {where}{ranks}"


def _named(cards: Sequence[int]) -> str:
    """Return the numbers of cards, with a dash between those that follow one another: `cards 1, 5-7`."""
    groups = groupby(enumerate(cards), lambda pair: pair[1] - pair[0])
    spans = [[card for _, card in span] for _, span in groups]
    ends = ("-".join(map(str, dict.fromkeys((span[0], span[-1])))) for span in spans)
    return f"card{'s' * (len(cards) > 1)} {', '.join(ends)}"


def cards_of(config: RunConfig) -> list[Card]:
    """Return the cards that a start divides. ConfigError: they are not here, or not of use to what is started."""
    machine = config.machine
    if "x" in machine.gpus:
        raise ConfigError(
            f"machine.gpus: given {machine.gpus}, expected a number: a start takes the cards that are here (triforge plan knows others)"
        )
    cards = find_cards(machine.gpus) if machine.divides else []
    if config.run.colocate and machine.serving != "local" and not cards:
        raise ConfigError(
            f"run.colocate: given true with {machine.serving} and no card, but SGLang and vLLM free their memory on a GPU alone; "
            "expected --gpus 1 or more, --engine local, or --no-colocate"
        )
    torch = next((found.version for found in distributions(name="torch")), "")
    if cards and config.learning and torch.endswith("+cpu"):
        raise ConfigError(
            f"machine.gpus: learners would have cards, but torch {torch} has no CUDA; replace it: {sys.executable} -m pip "
            "uninstall -y torch, then scripts/setup.sh demo again, which installs CUDA's where a card is"
        )
    return cards


def place(config: RunConfig, roles: Sequence[Role]) -> Placement:
    """Divide the cards of `machine.gpus` between the engines of `roles` and the learners.

    Raises:
        ConfigError: cards are missing, or the plan does not fit them.
        WeightsError: the folder of a model cannot be read.
    """
    machine, trained = config.machine, config.learning
    cards = cards_of(config)
    if not cards:
        none = () if machine.divides else None
        ranks = {role: config.learner(role).ranks or 1 for role in trained}
        return Placement(
            engines={role: [Seat(cards=none)] for role in roles},
            learners={role: Seat(cards=none, ranks=ranks[role]) for role in trained},
        )
    paths = {role: getattr(config.models, role).path for role in (*roles, *trained)}
    shapes = {role: ModelShape.of_folder(Path(path)) for role, path in paths.items()}
    plan = make_plan(config, shapes, cards, roles)
    used = Counter(card for engine in plan.engines for card in engine.cards)
    seats: dict[Role, list[Seat]] = {}
    for one in plan.engines:
        seat = Seat(
            cards=one.cards, memory=one.memory_fraction,
            alone=all(used[card] == 1 for card in one.cards), held=one.memory.total,
        )  # fmt: skip
        seats.setdefault(one.role, []).append(seat)
    learners = {
        one.role: Seat(cards=one.cards, ranks=one.ranks, held=one.memory.total)
        for one in plan.learners
    }
    return Placement(engines=seats, learners=learners)
