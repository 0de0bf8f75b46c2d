"""The tasks of a pool before they are stored: the family checks every row, and held-out tasks are kept separate.

env_adapter makes pools of them, and `triforge train` makes the same checks before it starts a process. Only a few tasks of
a pool are in memory at a time: rows come from an upload on disk, and checked tasks go to disk again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from pydantic import ValidationError

from triforge.environments.rows import Row, object_in, shown
from triforge.errors import InputError
from triforge.json_text import require_keepable
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.rollout.seeds import nth_seed
from triforge.types import MAX_TASKS, GenerateSpec, Params, PoolRequest, Split

_LISTED = 100  # bad rows that an error names; the rest is counted
_IN_MEMORY = 2**22  # bytes of checked tasks; more go to a temporary file
_DRAW = 5_000  # tasks that a family makes at a time
_SPARE_DRAWS = 8  # further draws, before the options count as too narrow


class CheckedTasks:
    """Checked tasks on disk, in order, at most `limit`; `splits` counts them."""

    def __init__(self, limit: int = MAX_TASKS) -> None:
        self.limit = limit
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._seen: dict[bytes, tuple[str, Split]] = {}
        self.splits: Counter[str] = Counter()

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

    def first(self, draft: TaskDraft, label: str, split: Split) -> tuple[str, Split]:
        """Return label and split of the first task with the same parameters, which may be this one."""
        same = hashlib.blake2b(identity(draft.params).encode(), digest_size=16).digest()
        return self._seen.setdefault(same, (label, split))

    def add(self, split: Split, draft: TaskDraft) -> None:
        """Append a task; raise InputError if it cannot be stored as text."""
        require_keepable([draft.params, draft.instruction, draft.kind], "task")
        line = json.dumps([split, draft.params, draft.instruction, draft.kind])
        self._file.write(line.encode() + b"\n")
        self.splits[split] += 1


def request_of(document: Mapping[str, Any]) -> PoolRequest:
    """Parse the fields of a body without its tasks; raise an InputError that names each malformed field."""
    require_keepable(dict(document), "body")
    try:
        return PoolRequest.model_validate(document)
    except ValidationError as error:
        problems = tuple(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']} (given {shown(item['input'])})"
            for item in error.errors()
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
    check_rows(family, rows, checked, fits=fits)
    generate(family, head.generate or GenerateSpec(count=0), checked, fits=fits)
    if not checked.count:
        raise InputError(f"tasks: given 0, expected 1 to {MAX_TASKS} (uploaded and generated)")


def _any_fits(params: Params) -> None:
    """Accept every task: most families play all tasks with all options."""


def check_rows(
    family: EnvironmentFamily,
    rows: Iterable[Row],
    checked: CheckedTasks,
    *,
    fits: Callable[[Params], None] = _any_fits,
) -> None:
    """Check every row and add the family's draft of it.

    Raises:
        InputError: names each bad row, and each held-out row that equals a training row; or there are too many rows.
    """
    bad: list[str] = []
    total = wrong = 0
    for total, (label, row) in enumerate(rows, start=1):
        checked.require_room(total)
        try:
            split, draft = _check_row(family, row)
            fits(draft.params)
            first, other = checked.first(draft, label, split)
            if other != split:
                raise InputError(
                    f"the same task as {first}, which is in the split {other!r}; a held-out task must not be trained on"
                )
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
) -> None:
    """Add tasks that differ from each other and from all tasks before, so that no held-out task is trained on.

    Raises:
        InputError: an option is unknown, the options allow too few different tasks, or there are too many tasks.
    """
    need = wanted.count + wanted.heldout
    checked.require_room(checked.count + need)
    made, at_a_time = 0, max(at_a_time, getattr(family, "at_a_time", 0))
    for draw in range(_SPARE_DRAWS + need // at_a_time):
        if made == need:
            return
        seed = nth_seed(draw, wanted.seed)  # the pool's own, then far from what people choose
        count = min(need, at_a_time)
        for params in family.generate(count=count, seed=seed, options=wanted.options):
            draft = family.validate(params)
            split: Split = "train" if made < wanted.count else "heldout"
            name = f"generated {made}"
            if made < need and checked.first(draft, name, split) == (name, split):
                fits(draft.params)
                checked.add(split, draft)
                made += 1
    if made < need:
        raise InputError(
            f"generate: given {need} different tasks (count and heldout), the options allow only about {made}; "
            "request fewer (--tasks and --heldout of `triforge train`) or widen generate.options"
        )
