"""The plan of a run on the cards of one machine: what runs where, how full that is, what the disk holds, how long a step takes."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from triforge.config import RunConfig, merge, parse, with_assignments
from triforge.config.base import Role
from triforge.errors import ConfigError
from triforge.planning.cards import SPEEDS, Card
from triforge.planning.memory import (
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
    notes: tuple[str, ...]

    @property
    def parts(self) -> tuple[Engine | Learner, ...]:
        """All that is started."""
        return (*self.engines, *self.learners)


def served(config: RunConfig) -> list[Role]:
    """Return the models that have engines of their own, the policy first."""
    models = config.models
    roles: list[Role] = [*models.players, *(models.judging if config.votes else ())]
    roles = [role for role in roles if not getattr(models, role).engines_of]
    return roles + ["rewriter"] * bool(config.adaptation.adapts and models.rewriter.path)


def make_plan(
    config: RunConfig, shapes: Mapping[Role, ModelShape], cards: Sequence[Card], roles: Sequence[Role]
) -> Plan:  # fmt: skip
    """Return the plan of a run.

    Args:
        shapes: of each model of `roles` and `RunConfig.trained`.
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
    unset = [r for r in config.trained if "activation_checkpointing" not in given.get(r, {})]
    saving = merge(document, {"trainer": {r: {"activation_checkpointing": True} for r in unset}})
    run = _Run(config, shapes, tuple(cards), tuple(roles))
    if plan := run.plan():
        return dict(document), plan
    if plan := replace(run, config=parse(saving)).plan():
        note = f"activation_checkpointing of {', '.join(unset)} is on: it does not fit without"
        return saving, replace(plan, notes=(note, *plan.notes))
    raise run.refusal()


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
            for role in config.trained
            for learner in (config.learner(role),)
        ]  # fmt: skip
        placed = place(engines, learners, self.cards, colocate=config.run.colocate)
        if placed is None:
            return None
        kept, sections = config.run.keep_checkpoints, {r: config.learner(r) for r in config.trained}
        files = tuple(Disk(r, *disk(self.shapes[r], s), kept) for r, s in sections.items())
        return Plan(
            cards=self.cards, engines=placed[0], learners=placed[1], colocate=config.run.colocate, disk=files,
            phases=tuple(_phases(work, *placed, files)) if speed else (), notes=tuple(self.notes(placed[1])),
        )  # fmt: skip

    def memory(self, role: Role, ranks: int, **changes: Any) -> LearnerMemory:
        """Return the bytes of each of so many ranks, with changes of the learner's options."""
        algorithm = self.config.algorithm_of(role)
        return learner_memory(
            self.shapes[role], self.config.learner(role).model_copy(update=changes), ranks=ranks, gpu=bool(self.cards),
            reference=algorithm.kl_beta > 0 and algorithm.kl_reference == "initial",
            critic=algorithm.needs_critic and role == "policy",
        )  # fmt: skip

    def notes(self, learners: Sequence[Learner]) -> Iterator[str]:
        """Say how long a row may be where longer ones are allowed, and where context parallelism would begin to be needed."""
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
                more = f", {most:,} with activation_checkpointing" if most > held else ""
                yield (
                    f"trainer.{one.role}.max_tokens allows rows of {section.max_tokens:,} tokens; a card holds {held:,} of "
                    f"one{more}. Longer rows need context parallelism, which no learner has"
                )

    def refusal(self) -> ConfigError:
        """Return why it does not fit, and what would."""
        count, size = len(self.cards), min(card.memory for card in self.cards) / GIB
        problems = [
            f"the learner of {role} needs {self.memory(role, count).total / GIB:.0f} GiB of each of {count} cards"
            for role in self.config.trained
        ]
        for role in self.roles:
            weights = engine_weights(self.shapes[role], 1) / GIB
            problems.append(f"the engine of {role} needs {weights:.1f} GiB for its weights alone")
        mends: list[set[str]] = []
        for mend, other in self.options():
            words = set(mend.split())  # what mends it with less makes the rest of them superfluous
            if not any(known <= words for known in mends) and other.plan():
                mends.append(words)
                problems.append(f"it fits with {mend}")
            if len(mends) == _SHOWN:
                break
        if not mends:
            problems.append(
                "no option makes it fit: take a smaller model, or describe larger cards"
            )
        return ConfigError(
            f"machine.gpus: given {count} x {size:.0f} GiB, expected more, or a run that fits",
            problems=tuple(problems),
        )

    def options(self) -> Iterator[tuple[str, _Run]]:
        """Yield changes that need less memory, as words of a command, the mildest first."""
        saving = {"activation_checkpointing": True}
        budget = {"token_budget": max(1024, self.config.learner("policy").token_budget // 4)}
        adapter = {"lora_rank": 16, "publish_dtype": "float32"}
        changes = (
            saving,
            budget,
            saving | budget,
            adapter,
            saving | adapter,
            saving | budget | adapter,
        )
        yield from (self.changed(change) for change in changes)
        if len(self.cards) == 1 and not self.config.run.staleness_bound:
            yield from (self.changed(change, "run.colocate=true") for change in ({}, *changes))
        for count in (len(self.cards) + 1, 2 * len(self.cards), 4 * len(self.cards)):
            more = tuple(replace(self.cards[0], index=n) for n in range(count))
            yield f"{count} such cards", replace(self, cards=more)

    def changed(self, trainer: Mapping[str, Any], *further: str) -> tuple[str, _Run]:
        """Return the run with options of all its learners and `further` ones changed."""
        sets = [
            f"trainer.{role}.{name}={json.dumps(value)}"
            for role in self.config.trained
            for name, value in trainer.items()
            if getattr(self.config.learner(role), name) != value
        ]
        sets += further
        document = self.config.model_dump(mode="json", exclude_unset=True)
        run = replace(self, config=parse(with_assignments(document, sets)))
        return " ".join(f"--set {one}" for one in sets), run


def _phases(
    work: Mapping[Role, Work], engines: Sequence[Engine], learners: Sequence[Learner], files: Sequence[Disk]
) -> Iterator[Phase]:  # fmt: skip
    for role in dict.fromkeys(engine.role for engine in engines):
        own = [engine for engine in engines if engine.role == role]
        together = own[0].cache_tokens // work[role].row
        yield work[role].decoding(len(own), own[0].tensor_parallel, together)
    yield from (work[learner.role].training(learner.ranks) for learner in learners)
    yield from (work[one.role].publishing(one.checkpoint, one.version) for one in files)
