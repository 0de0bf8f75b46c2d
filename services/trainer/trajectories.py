"""What each trajectory of a step wrote, token by token in order, whatever rows it lies in; and what the tokens brought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triforge.errors import TrainerError
from triforge.types import TrainRow

Ints = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Courses:
    """Trajectories over flat arrays [N] of a step's scored tokens.

    Attributes:
        cells: of each trajectory, int64: where its tokens stand in the flat arrays, in the order they were written.
        ends: of each trajectory, int64: which of its tokens are the last of a turn; the last token always is.
        rewards: float64 [N], what each token brought.
    """

    cells: tuple[Ints, ...]
    ends: tuple[Ints, ...]
    rewards: Doubles

    def __iter__(self) -> Iterator[tuple[Ints, Ints]]:
        """Cells and ends of each trajectory."""
        return zip(self.cells, self.ends, strict=True)

    @staticmethod
    def of(rows: Sequence[TrainRow]) -> Courses:
        """Read rows whose key is that of their trajectory, a slash, and the row's number in it.

        Raises:
            TrainerError: rewards or ends of turns do not fit the row's tokens.
        """
        parts: dict[str, list[tuple[int, Ints, Marks]]] = {}
        rewards, begun = [], 0
        for row in rows:
            places = np.flatnonzero(np.asarray(row.weights))
            if not len(places):
                continue
            _check(row, places)
            name, _, number = row.key.rpartition("/")
            own = np.arange(begun, begun + len(places), dtype=np.int64)
            order = int(number) if name and number.isdigit() else 0
            parts.setdefault(name or row.key, []).append((order, own, np.isin(places, row.ends)))
            rewards.append(np.asarray(row.rewards, dtype=np.float64)[places])
            begun += len(places)
        whole = [sorted(own, key=lambda part: part[0]) for own in parts.values()]
        return Courses(
            cells=tuple(np.concatenate([cells for _, cells, _ in own]) for own in whole),
            ends=tuple(np.flatnonzero(np.concatenate([e for _, _, e in own])) for own in whole),
            rewards=np.concatenate(rewards) if rewards else np.zeros(0),
        )


def _check(row: TrainRow, places: npt.NDArray[np.intp]) -> None:
    if len(row.rewards) != len(row.ids) or not np.isfinite(row.rewards).all():
        raise TrainerError(
            f"row {row.key!r}: given {len(row.rewards)} rewards, expected {len(row.ids)} finite ones, one a token: a critic "
            "estimates advantages from them"
        )
    strange = sorted(set(row.ends) - set(places.tolist()))
    if strange or places[-1] not in row.ends:
        raise TrainerError(
            f"row {row.key!r}: given ends of turns {list(row.ends)}, expected places of tokens that are trained on, the last "
            f"of which ({places[-1]}) ends a turn"
        )
