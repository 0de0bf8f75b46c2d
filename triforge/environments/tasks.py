"""The tasks of a pool before they are stored: the family checks every row, and no held-out task asks what a training task asks.

Tasks ask the same if the family's `asks` gives the same text for both (`Family.asks`), whatever their ids, or without it if
their parameters are equal. Rows with another split than rows that ask the same are refused; generated ones get one split.

env_adapter makes pools of them, and `triforge train` makes the same checks before it starts a process. Only a few tasks of
a pool are in memory at a time: rows come from an upload on disk, and checked tasks go to disk again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Self

from pydantic import ValidationError

from triforge.environments.rows import MAX_ROW, Row, object_in, shown
from triforge.errors import InputError
from triforge.json_text import require_keepable
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.rollout.seeds import nth_seed
from triforge.types import MAX_TASKS, GenerateSpec, Params, PoolRequest, Split

Asks = Callable[[TaskDraft], str]
_LISTED = 100  # bad rows or fields that an error names; the rest of the rows is counted
_IN_MEMORY = 2**22  # bytes of checked tasks; more go to a temporary file
_DRAW = 5_000  # tasks that a family makes at a time
_SPARE_DRAWS = 8  # further draws, before the options count as too narrow


class CheckedTasks:
    """Checked tasks on disk, in order, at most `limit`; `splits` counts them."""

    def __init__(self, limit: int = MAX_TASKS) -> None:
        self.limit = limit
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._seen: set[bytes] = set()
        self._asked: dict[bytes, tuple[str, Split]] = {}
        self.splits: Counter[str] = Counter()
        self.drawn = self.repeated = (
            0  # tasks of the first draw, and those of them that repeat another
        )

    @property
    def repeats(self) -> str:
        """Return the beginning of a sentence with the number of drawn tasks that repeat another; empty if none does, or further ones took their place."""
        short = self.repeated and self.count == self.drawn - self.repeated
        return f"{self.repeated} of {self.drawn} tasks repeat another, " if short else ""

    @property
    def summary(self) -> str:
        """A sentence on tasks that repeat others or ask the same; empty without any."""
        alike = self.count - len(self._asked)
        same = (
            f" ({alike} of them ask what another one asks, and are in its split)" if alike else ""
        )
        if not (self.count < self.drawn or alike):
            return ""
        train, heldout = self.splits["train"], self.splits["heldout"]
        split = f": {train} to train on, {heldout} held out" if heldout else ""
        return f"{self.repeats}there are {self.count} different tasks{same}{split}"

    @property
    def count(self) -> int:
        """The number of tasks."""
        return self.splits.total()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[tuple[Split, TaskDraft]]:
        """Yield all tasks; after this no task may be added."""
        self._file.seek(0)
        for line in self._file:
            split, params, instruction, kind = json.loads(line)
            yield split, TaskDraft(params=params, instruction=instruction, kind=kind)

    def require_room(self, count: int) -> None:
        """Raise InputError if the pool would have too many tasks."""
        if count > self.limit:
            raise InputError(f"tasks: given more than {self.limit}; make several pools")

    def is_new(self, draft: TaskDraft) -> bool:
        """Return whether no task with the same parameters was seen before."""
        before = len(self._seen)
        self._seen.add(_digest(identity(draft.params)))
        return len(self._seen) > before

    def first(self, asked: str, label: str, split: Split) -> tuple[str, Split]:
        """Return label and split of the first task that asks this, which may be the one of this label."""
        return self._asked.setdefault(_digest(asked), (label, split))

    def split_of(self, asked: str) -> Split | None:
        """Return the split of the tasks that ask this; None before the first one."""
        first = self._asked.get(_digest(asked))
        return None if first is None else first[1]

    def add(self, split: Split, draft: TaskDraft) -> None:
        """Append a task; raise InputError if it cannot be stored as text."""
        require_keepable([draft.params, draft.instruction, draft.kind], "task")
        line = json.dumps([split, draft.params, draft.instruction, draft.kind])
        self._file.write(line.encode() + b"\n")
        self.splits[split] += 1


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def request_of(document: Mapping[str, Any]) -> PoolRequest:
    """Parse the fields of a body without its tasks; raise an InputError that names each malformed field."""
    require_keepable(dict(document), "body without tasks", most=MAX_ROW)
    try:
        return PoolRequest.model_validate(document)
    except ValidationError as error:
        problems = tuple(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (given {shown(item['input'])})"
            for item in error.errors()[:_LISTED]
        )
        raise InputError("; ".join(problems), problems=problems) from None


def check_pool(
    family: EnvironmentFamily, head: PoolRequest, rows: Iterable[Row], checked: CheckedTasks
) -> None:
    """Check `rows`, which are read once, and the tasks of `head.generate`, and add the drafts of both.

    Raises:
        InputError: options or rows are malformed; each bad row is named.
    """
    family.make(head.options)  # refuses impossible options
    own = getattr(family, "fits", None)
    fits = (lambda params: own(params, head.options)) if own else _any_fits
    asks = asks_of(family, head.options)
    check_rows(family, rows, checked, fits=fits, asks=asks)
    generate(family, head.generate or GenerateSpec(count=0), checked, fits=fits, asks=asks)
    if not checked.count:
        raise InputError(f"tasks: given 0, expected 1 to {MAX_TASKS} (uploaded and generated)")


def _any_fits(params: Params) -> None:
    """Accept every task: most families play all tasks with all options."""


def _parameters(draft: TaskDraft) -> str:
    return identity(draft.params)


def asks_of(family: EnvironmentFamily, options: Params) -> Asks:
    """Return the function that says what a task of a pool with these options asks."""
    own = getattr(family, "asks", None)
    return (lambda draft: own(draft, options)) if own else _parameters


def check_rows(
    family: EnvironmentFamily,
    rows: Iterable[Row],
    checked: CheckedTasks,
    *,
    fits: Callable[[Params], None] = _any_fits,
    asks: Asks = _parameters,
) -> None:
    """Check every row and add the family's draft of it.

    Raises:
        InputError: names each bad row, and each row that asks the same as one of the other split; or there are too many rows.
    """
    bad: list[str] = []
    total = wrong = 0
    for total, (label, row) in enumerate(rows, start=1):
        checked.require_room(total)
        try:
            split, draft = _check_row(family, row)
            fits(draft.params)
            first, other = checked.first(asks(draft), label, split)
            if other != split:
                raise InputError(
                    f"asks the same as {first}, which is in the split {other!r}; a held-out task must not be trained on: give "
                    "both one split"
                )
            checked.is_new(draft)
        except InputError as error:
            wrong += 1
            if wrong <= _LISTED:
                bad.append(f"{label}: {error.detail}")
        else:
            if not wrong:
                checked.add(split, draft)
    if wrong:
        rest = (f"and {wrong - _LISTED} more",) if wrong > _LISTED else ()
        raise InputError(
            f"{wrong} of {total} rows are malformed, nothing was stored; the first is {bad[0]}",
            problems=(*bad, *rest),
        )


def _check_row(family: EnvironmentFamily, row: Any) -> tuple[Split, TaskDraft]:
    row = object_in(row)
    unknown = sorted(set(row) - {"params", "split"})
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}; a row has `params` and maybe `split`")
    params, split = row.get("params"), row.get("split", "train")
    if not isinstance(params, dict):
        raise InputError(f"params: given {shown(params)}, expected an object")
    if split not in ("train", "heldout"):
        raise InputError(f"split: given {shown(split)}, allowed 'train' or 'heldout'")
    return split, family.validate(params)


def generate(
    family: EnvironmentFamily,
    wanted: GenerateSpec,
    checked: CheckedTasks,
    *,
    at_a_time: int = _DRAW,
    fits: Callable[[Params], None] = _any_fits,
    asks: Asks = _parameters,
) -> None:
    """Add tasks that differ from each other and from all tasks before; tasks that ask the same get one split.

    Raises:
        InputError: an option is unknown, the options allow too few different tasks, or there are too many tasks.
    """
    need = wanted.count + wanted.heldout
    checked.require_room(checked.count + need)
    room: dict[Split, int] = {"train": wanted.count, "heldout": wanted.heldout}
    drawn: Iterable[list[TaskDraft]] = _drawn(family, wanted, checked, at_a_time)
    if wanted.at_most:
        there = [*islice(chain.from_iterable(drawn), need)]
        if len(there) < need:
            heldout = min(wanted.heldout, max(1, len(there) // 5)) if len(there) > 1 else 0
            room = {"train": len(there) - heldout, "heldout": heldout}
        drawn = [there]
    for drafts in drawn:
        for split, draft in _dealt(drafts, [*map(asks, drafts)], room, checked):
            fits(draft.params)
            checked.add(split, draft)
        if not any(room.values()):
            break
    if any(room.values()) and not wanted.at_most:
        raise InputError(
            f"generate: asked for {need} different tasks ({wanted.count} to train on, {wanted.heldout} held out), there are only "
            f"about {need - sum(room.values())}: {checked.repeats}tasks that ask the same stay in one split. Ask for fewer (--tasks "
            "and --heldout of `triforge train`), widen generate.options, or name what tells the tasks apart, if the family has "
            "an option for it"
        )


def _drawn(
    family: EnvironmentFamily, wanted: GenerateSpec, checked: CheckedTasks, at_a_time: int
) -> Iterator[list[TaskDraft]]:
    """Yield the new tasks of each draw, until the family has no more."""
    need = wanted.count + wanted.heldout
    at_a_time = max(at_a_time, getattr(family, "at_a_time", 0))
    for draw in range((_SPARE_DRAWS + need // at_a_time) if need else 0):
        seed = nth_seed(draw, wanted.seed)  # the pool's own, then far from what people choose
        count = min(need, at_a_time)
        drawn = family.generate(count=count, seed=seed, options=wanted.options)
        drafts = [draft for draft in map(family.validate, drawn) if checked.is_new(draft)]
        if not draw:
            checked.drawn, checked.repeated = len(drawn), len(drawn) - len(drafts)
        yield drafts
        if len(drawn) < count:
            return


def _dealt(
    drafts: Sequence[TaskDraft], asked: Sequence[str], room: dict[Split, int], checked: CheckedTasks
) -> list[tuple[Split, TaskDraft]]:
    """Deal different drafts to the splits, as far as there is `room`, which is counted down; drafts that ask the same get one split.

    Drafts that ask what a task before asks follow it, and come first. Then the largest groups are dealt first, whole, to training if it has room
    for them, else to the held-out ones; what fits nowhere whole fills the rest.
    """
    groups: dict[str, list[int]] = {}
    for place, text in enumerate(asked):
        groups.setdefault(text, []).append(place)
    dealt: dict[int, Split] = {}

    def deal(text: str, least: int) -> bool:
        """Deal a group to the first split with room for `least` of it; return whether there was one."""
        known = checked.split_of(text)
        split = known or next((split for split in room if room[split] >= least), None)
        if split is None:
            return False
        places = groups[text][: room[split]]
        checked.first(text, "generated", split)
        dealt.update(dict.fromkeys(places, split))
        room[split] -= len(places)
        return True

    def urgency(text: str) -> tuple[bool, int]:
        return checked.split_of(text) is None, -len(groups[text])

    ordered = sorted(groups, key=urgency)
    left = [text for text in ordered if not deal(text, len(groups[text]))]
    for text in left:
        deal(text, 1)
    return [(dealt[place], drafts[place]) for place in sorted(dealt)]
