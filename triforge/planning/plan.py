"""The plan of a run on the cards of one machine: what runs where, how full that is, what the disk holds, how long a step takes."""

from __future__ import annotations

import bisect
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from triforge.config import RunConfig, merge, parse, with_assignments
from triforge.config.base import Role
from triforge.errors import ConfigError
from triforge.planning.cards import SPEEDS, Card
from triforge.planning.memory import (
    FRACTION,
    GIB,
    USABLE,
    LearnerMemory,
    disk,
    engine_weights,
    learner_memory,
)
from triforge.planning.place import Engine, EngineNeed, Learner, LearnerNeed, place
from triforge.planning.seconds import Phase, Work
from triforge.planning.shapes import ModelShape

_SHOWN = 4  # options of a refusal
_THOUSANDS = range(1, 1001)  # tokens of a row that are tried


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of one checkpoint and of one version of a model, and how many of each are kept."""

    role: Role
    checkpoint: float
    version: float
    kept: int

    @property
    def total(self) -> float:
        """All that is kept, and one of each that is being written."""
        return (self.checkpoint + self.version) * (self.kept + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Placement of all parts. Engines are started in this order, before the learners."""

    cards: tuple[Card, ...]
    engines: tuple[Engine, ...]
    learners: tuple[Learner, ...]
    colocate: bool
    disk: tuple[Disk, ...]
    phases: tuple[Phase, ...]  # none where the cards' speed is not known
    assumed: str  # what the phases assume
    notes: tuple[str, ...]

    @property
    def parts(self) -> tuple[Engine | Learner, ...]:
        """All that is started."""
        return (*self.engines, *self.learners)


def served(config: RunConfig) -> list[Role]:
    """Return the models that have engines of their own, the policy first."""
    models = config.models
    played = () if config.env_adapter.by_trainer else tuple(models.players)
    roles: list[Role] = [*played, *(models.judging if config.votes else ())]
    roles = [role for role in roles if not getattr(models, role).engines_of]
    return roles + ["rewriter"] * bool(config.adaptation.adapts and models.rewriter.path)


def make_plan(
    config: RunConfig, shapes: Mapping[Role, ModelShape], cards: Sequence[Card], roles: Sequence[Role]
) -> Plan:  # fmt: skip
    """Return the plan of a run.

    Args:
        shapes: of each model of `roles` and `RunConfig.learning`.
        cards: all that it may use; none is a machine without GPUs.
        roles: models whose engines are started here, as `served`.

    Raises:
        ConfigError: it does not fit; its problems name options with which it would, each tried.
    """
    run = _Run(config, shapes, tuple(cards), tuple(roles))
    plan = run.plan()
    if plan is None:
        raise run.refusal()
    return plan


def fitted(
    document: Mapping[str, Any], shapes: Mapping[Role, ModelShape], cards: Sequence[Card], roles: Sequence[Role]
) -> tuple[dict[str, Any], Plan]:  # fmt: skip
    """Return the document of a run and its plan; `activation_checkpointing` that it leaves open is on if the run does not fit without.

    Raises:
        ConfigError: as `make_plan`.
    """
    config = parse(document)
    given = document.get("trainer", {})
    unset = [r for r in config.learning if "activation_checkpointing" not in given.get(r, {})]
    saving = merge(document, {"trainer": {r: {"activation_checkpointing": True} for r in unset}})
    run = _Run(config, shapes, tuple(cards), tuple(roles))
    if plan := run.plan():
        return dict(document), plan
    plan = make_plan(parse(saving), shapes, cards, roles)
    note = f"activation_checkpointing of {', '.join(unset)} is on: it does not fit without"
    return saving, replace(plan, notes=(note, *plan.notes))


@dataclass(frozen=True, slots=True)
class _Run:
    config: RunConfig
    shapes: Mapping[Role, ModelShape]
    cards: tuple[Card, ...]
    roles: tuple[Role, ...]

    def plan(self) -> Plan | None:
        """Return the plan; None if it does not fit."""
        config, speed = self.config, self.cards[0].speed if self.cards else None
        work = {
            r: Work(config, r, shape, speed or SPEEDS["H100"]) for r, shape in self.shapes.items()
        }
        engines = [
            EngineNeed(
                role=role, shape=self.shapes[role], tokens=work[role].row, gpus=model.gpus, replicas=model.replicas,
                tensor_parallel=model.tensor_parallel, seconds=work[role].decoding().seconds,
            )
            for role in self.roles
            for model in (getattr(config.models, role),)
        ]  # fmt: skip
        learners = [
            LearnerNeed(
                role=role, memory=partial(self.memory, role), gpus=learner.gpus, ranks=learner.ranks,
                seconds=work[role].training().seconds,
            )
            for role in config.learning
            for learner in (config.learner(role),)
        ]  # fmt: skip
        placed = place(engines, learners, self.cards, colocate=config.run.colocate)
        if placed is None:
            return None
        kept, sections = (
            config.run.keep_checkpoints,
            {r: config.learner(r) for r in config.learning},
        )
        files = tuple(Disk(r, *disk(self.shapes[r], s), kept) for r, s in sections.items())
        return Plan(
            cards=self.cards, engines=placed[0], learners=placed[1], colocate=config.run.colocate, disk=files,
            phases=tuple(_phases(work, *placed, files)) if speed else (), assumed=self.assumed(work) if speed else "",
            notes=tuple(self.notes(*placed, files)),
        )  # fmt: skip

    def assumed(self, work: Mapping[Role, Work]) -> str:
        """Return what the seconds assume: rows, and the data sheet."""
        card = self.cards[0]
        why = "" if card.name else ", assumed by the memory: the kind of card is not named"
        return f"{work['policy'].assumed}; data sheet of the {card.sheet}{why}"

    def memory(self, role: Role, ranks: int, **changes: Any) -> LearnerMemory:
        """Return the bytes of each of so many ranks, with changes of the learner's options."""
        algorithm = self.config.algorithm_of(role)
        return learner_memory(
            self.shapes[role], self.config.learner(role).model_copy(update=changes), ranks=ranks, gpu=bool(self.cards),
            reference=algorithm.kl_beta > 0 and algorithm.kl_reference == "initial",
            critic=algorithm.needs_critic and role == "policy",
        )  # fmt: skip

    def notes(
        self, engines: Sequence[Engine], learners: Sequence[Learner], files: Sequence[Disk]
    ) -> Iterator[str]:
        """Say which rows are too long for a card, how many cards are idle, and what is more than this machine has."""
        for role, held, most in self.short(learners):
            more = f", {most:,} with activation_checkpointing" if most > held else ""
            yield (
                f"trainer.{role}.max_tokens allows rows of {self.config.learner(role).max_tokens:,} tokens; a card holds {held:,} of "
                f"one{more}. Longer rows need context parallelism, which no learner has"
            )
        if self.config.run.colocate and len(self.cards) > 1:
            yield f"{len(self.cards) - 1} of {len(self.cards)} cards are idle: --colocate uses one"
        if self.cards:
            return
        needed = sum(one.memory.total for one in engines)
        needed += sum(one.memory.total * one.ranks for one in learners)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > there:
            yield f"engines and learners need {_gib(needed)}, and this machine has {_gib(there)}"
        written, free = sum(one.total for one in files), shutil.disk_usage(".").free
        if written > free:
            yield f"checkpoints and versions need {_gib(written)}, and {_gib(free)} of the disk here are free"

    def short(self, learners: Sequence[Learner]) -> Iterator[tuple[Role, int, int]]:
        """Yield learners whose cards do not hold the longest row: how much of one they do, and with activation checkpointing."""
        for one in learners if self.cards else ():
            section = self.config.learner(one.role)
            room = USABLE * min(card.memory for card in self.cards)

            def needed(thousands: int, *, saving: bool, one: Learner = one) -> float:
                changes = {"token_budget": 1000 * thousands, "activation_checkpointing": saving}
                return self.memory(one.role, one.ranks, **changes).total

            held, most = (
                1000 * bisect.bisect_right(_THOUSANDS, room, key=partial(needed, saving=saving))
                for saving in (section.activation_checkpointing, True)
            )
            if held < min(section.max_tokens, self.shapes[one.role].longest):
                yield one.role, held, most

    def refusal(self) -> ConfigError:
        """Return why it does not fit, and what would."""
        count, size = len(self.cards), min(card.memory for card in self.cards)
        colocate, problems = self.config.run.colocate, []
        if colocate and count > 1:
            problems.append("--colocate uses one card")
        if count == 1 and not colocate:
            problems.append(
                "engines and learners need cards of their own; one card is shared with --colocate"
            )
        for role in self.config.learning:
            needed = _gib(self.memory(role, 1 if colocate else count).total)
            usable = f"{USABLE * size / GIB:.3g} of {_gib(size)}"
            problems.append(
                f"the learner of {role} needs {needed} of each card, of which it can use {usable}"
            )
        for role in self.roles:
            weights = _gib(engine_weights(self.shapes[role], 1))
            usable = f"{FRACTION * size / GIB:.3g} of {_gib(size)}"
            problems.append(
                f"the engine of {role} needs {weights} for its weights alone, and can use {usable} of a card"
            )
        mends: list[set[str]] = []
        for mend, other in self.options():
            words = set(mend.split())  # what mends it with less makes the rest of them superfluous
            if not any(known <= words for known in mends) and (plan := other.plan()):
                mends.append(words)
                rows = min((held for _, held, _ in other.short(plan.learners)), default=0)
                problems.append(
                    f"it fits with {mend}{f' (rows of up to {rows:,} tokens)' * bool(rows)}"
                )
            if len(mends) == _SHOWN:
                break
        if not mends:
            problems.append(
                "no option makes it fit: take a smaller model, or describe larger cards"
            )
        return ConfigError(
            f"machine.gpus: given {count} x {_gib(size)}, expected more, or a run that fits",
            problems=tuple(problems),
        )

    def options(self) -> Iterator[tuple[str, _Run]]:
        """Yield changes that need less memory, as words of a command: those that hold the same rows first, the mildest first."""
        saving = {"activation_checkpointing": True}
        budget = {"token_budget": max(1024, self.config.learner("policy").token_budget // 4)}
        adapter = {"lora_rank": 16, "publish_dtype": "float32"}
        yield from self.each(({}, saving, adapter, saving | adapter))
        colocate = self.config.run.colocate
        words, run = self.changed({}, colocate=False if colocate else None)
        for count in range(len(self.cards) + (not colocate), 4 * len(self.cards) + 1):
            more = replace(run, cards=tuple(replace(self.cards[0], index=n) for n in range(count)))
            if more.plan():
                wider = f"{count} such cards " * (count > len(self.cards))
                yield f"{wider}{words}".rstrip(), more
                break
        yield from self.each((budget, saving | budget, saving | budget | adapter))

    def each(self, changes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, _Run]]:
        """Yield the run with each of the changes, and then in turns on its one card."""
        turns = len(self.cards) == 1 and not self.config.run.staleness_bound
        for colocate in (None, True) if turns and not self.config.run.colocate else (None,):
            yield from (self.changed(change, colocate=colocate) for change in changes)

    def changed(self, trainer: Mapping[str, Any], *, colocate: bool | None) -> tuple[str, _Run]:
        """Return the run with options of all its learners changed, and whether parts take turns."""
        sets = [
            f"trainer.{role}.{name}={json.dumps(value)}"
            for role in self.config.learning
            for name, value in trainer.items()
            if getattr(self.config.learner(role), name) != value
        ]
        document = self.config.model_dump(mode="json", exclude_unset=True)
        words = [f"--set {one}" for one in sets]
        if colocate is not None:
            document = merge(document, {"run": {"colocate": colocate}})
            words.append("--colocate" if colocate else "--no-colocate")
        return " ".join(words), replace(self, config=parse(with_assignments(document, sets)))


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"


def _phases(
    work: Mapping[Role, Work], engines: Sequence[Engine], learners: Sequence[Learner], files: Sequence[Disk]
) -> Iterator[Phase]:  # fmt: skip
    for role in dict.fromkeys(engine.role for engine in engines):
        own = [engine for engine in engines if engine.role == role]
        together = own[0].cache_tokens // work[role].row
        yield work[role].decoding(len(own), own[0].tensor_parallel, together)
    yield from (work[learner.role].training(learner.ranks) for learner in learners)
    yield from (work[one.role].publishing(one.checkpoint, one.version) for one in files)
