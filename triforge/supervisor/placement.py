"""The cards of this machine, and which of them each engine and each learner gets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.types import Role

_MEMORY = 0.85  # of a card, for the weights and the cache of its engines


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The cards of one engine or learner.

    Attributes:
        cards: their ids, as CUDA_VISIBLE_DEVICES takes them; None where nothing was divided, and a process sees all.
        memory: share of what is free on a card that an engine may take.
        alone: whether no other engine has the card; engines that share one begin one after the other.
        ranks: processes of a learner.
    """

    cards: tuple[str, ...] | None = None
    memory: float = _MEMORY
    alone: bool = True
    ranks: int = 1

    @property
    def env(self) -> dict[str, str]:
        """The variable that shows a process its cards alone."""
        return {} if self.cards is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.cards)}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The seats of a deployment by role; of an engine there are as many as it has servers."""

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
                yield f"{name}: {'card ' + ', '.join(seat.cards) if seat.cards else 'the CPU'}{ranks}"


def place(config: RunConfig, roles: Sequence[Role]) -> Placement:
    """Divide the cards of `machine.gpus` between the engines of `roles` and the learners.

    ConfigError: there are fewer cards, more ranks than cards, or one card that is not shared in turns.
    """
    machine, trained = config.machine, config.trained
    ranks = {role: config.learner(role).ranks or 1 for role in trained}
    divides = machine.gpus != "" or machine.serving != "local"
    found = cards_here() if divides else []
    wanted = int(machine.gpus or len(found))
    if not wanted:
        cards = () if divides else None
        return Placement(
            engines={role: [Seat(cards=cards)] for role in roles},
            learners={role: Seat(cards=cards, ranks=ranks[role]) for role in trained},
        )
    if len(found) < wanted:
        raise ConfigError(
            f"machine.gpus: given {wanted}, expected at most the {len(found)} of this machine (nvidia-smi)"
        )
    if (wanted == 1) is not config.run.colocate:
        raise ConfigError(
            f"machine.gpus: given {wanted} with run.colocate = {str(config.run.colocate).lower()}, expected 1 with --colocate, where "
            "engines and learners have the card in turn, or more without it"
        )
    half = (wanted + 1) // 2 if roles else 0
    serving, training = found[:half], found[:1] if wanted == 1 else found[half:wanted]
    engines, learners = _divided(serving, roles), _divided(training, trained)
    for role, mine in learners.items():
        if config.learner(role).ranks > len(mine):
            raise ConfigError(
                f"trainer.{role}.ranks: given {config.learner(role).ranks}, expected at most one for each of its {len(mine)} cards "
                f"({wanted} of machine.gpus are divided)"
            )
        ranks[role] = config.learner(role).ranks or len(mine)
    share = _MEMORY / max(
        Counter(card for mine in engines.values() for card in mine).values(), default=1
    )
    begun = Counter[str]()
    seats: dict[Role, list[Seat]] = {role: [] for role in roles}
    for role, mine in engines.items():
        for card in mine:
            # of what those before it have left
            memory = round(share / (1 - share * begun[card]), 2)
            seats[role].append(Seat(cards=(card,), memory=memory, alone=share == _MEMORY))
            begun[card] += 1
    return Placement(
        engines=seats,
        learners={
            role: Seat(cards=mine[: ranks[role]], ranks=ranks[role])
            for role, mine in learners.items()
        },
    )


def _divided(cards: Sequence[str], roles: Sequence[Role]) -> dict[Role, tuple[str, ...]]:
    """Deal the cards out to the roles; where there are fewer, roles share one."""
    count = len(roles)
    return {
        role: tuple(cards[number::count]) or (cards[number % len(cards)],)
        for number, role in enumerate(roles)
    }


def cards_here() -> list[str]:
    """Return the ids of the cards that processes may use: those of CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [card for card in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if card]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.split() if done.returncode == 0 else []
