"""The rows of a training step, checked and laid out as flat arrays [N] over their scored tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.trainer.learner.model.token_batches import Floats, Ints, Sequences
from services.trainer.learner.model.vision import inputs_of
from triforge.errors import TrainerError
from triforge.types import TrainRow

Doubles = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepData:
    """The rows of a step that have something to train on. Flat arrays [N] hold what belongs to the scored tokens."""

    sequences: Sequences  # in the order of the batch
    old: Floats  # behaviour log-probabilities
    advantages: Floats
    weights: Floats  # how much each token counts
    lags: (
        Ints  # how many versions ago each token was sampled; 0 is the weights that are now trained
    )
    responses: (
        Ints  # its response's number: neighbours of one advantage in a row, up to a turn's end
    )
    keys: tuple[str, ...]  # of each row
    tasks: tuple[str, ...]  # of each row
    trajectories: tuple[str, ...]  # of each row
    turns: Turns | None = None  # what each trajectory's tokens brought; None without a critic

    def scale(self, cells: Ints, *, summed: bool) -> float:
        """Return the factor for the weights of an update's tokens, so that an update has the scale of the whole batch.

        The factor is (sum of the batch's weights) / (sum of the update's weights). With `step_sum`, longer responses have
        larger sums and must keep them: there the factor counts responses.
        """
        if summed:
            return len(np.unique(self.responses)) / len(np.unique(self.responses[cells]))
        whole = float(self.weights.sum(dtype=np.float64))
        return whole / float(self.weights[cells].sum(dtype=np.float64))

    def by_row(self, flat: Floats) -> list[tuple[str, Ints, Floats]]:
        """Flat values row by row: its key, the places of its scored tokens, and their values."""
        found = self.sequences
        return [(k, found.scored(n), flat[found.cells_of([n])]) for n, k in enumerate(self.keys)]

    @staticmethod
    def from_rows(
        rows: Sequence[TrainRow], *, max_tokens: int, vocabulary: int, version: int
    ) -> StepData:
        """Check rows and lay them out. Rows whose weights are all 0 are context only and cost nothing.

        `version` is that of the weights that are trained.

        Raises:
            TrainerError: a row is too long, holds an id the model does not know, or a value that is not finite.
        """
        vision = any(row.images for row in rows)
        laid = [_Laid(row, max_tokens, vocabulary, version) for row in rows]
        kept = [one for one in laid if len(one.places)]
        begins = np.cumsum([0, *(one.responses for one in kept)])
        return StepData(
            sequences=Sequences(
                [one.ids for one in kept],
                [one.places for one in kept],
                [inputs_of(one.row, int(one.places[-1])) for one in kept] if vision else [],
            ),
            old=_flat([one.old for one in kept], np.float32),
            advantages=_flat([one.advantages for one in kept], np.float32),
            weights=_flat([one.weights for one in kept], np.float32),
            lags=_flat([one.lags for one in kept], np.int64),
            responses=_flat(
                [begin + one.response for begin, one in zip(begins, kept, strict=False)], np.int64
            ),
            keys=tuple(one.row.key for one in kept),
            tasks=tuple(one.row.task_id for one in kept),
            trajectories=tuple(one.trajectory for one in kept),
            turns=Turns.of(kept) if any(row.ends for row in rows) else None,
        )


class _Laid:
    def __init__(self, row: TrainRow, max_tokens: int, vocabulary: int, version: int) -> None:
        self.row = row
        self.ids = np.asarray(row.ids, dtype=np.int64)
        weights = np.asarray(row.weights, dtype=np.float32)
        _check(row, self.ids, weights, max_tokens, vocabulary)
        self.places = np.flatnonzero(weights)
        name, _, number = row.key.rpartition("/")
        self.trajectory = name or row.key
        self.number = int(number) if name and number.isdigit() else 0
        if not len(self.places):
            return
        self.weights = weights[self.places]
        self.lags = version - np.asarray(row.versions, dtype=np.int64)[self.places]
        self.old = np.asarray(row.logprobs, dtype=np.float32)[self.places]
        self.advantages = np.asarray(row.advantages, dtype=np.float32)[self.places]
        if not (np.isfinite(self.old).all() and np.isfinite(self.advantages).all()):
            raise TrainerError(
                f"row {row.key!r}: given a log-probability or advantage that is not finite, expected numbers"
            )
        new = (np.diff(self.places) != 1) | (np.diff(self.advantages) != 0)
        new |= np.isin(self.places[:-1], row.ends)
        self.response: Ints = np.concatenate([[0], np.cumsum(new)])
        self.responses = int(self.response[-1]) + 1


def _flat(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _check(row: TrainRow, tokens: Ints, weight: Floats, max_tokens: int, vocabulary: int) -> None:
    aligned = (row.logprobs, row.advantages, row.weights, row.versions)
    if {len(values) for values in aligned} != {len(tokens)}:
        given = ", ".join(str(len(values)) for values in aligned)
        raise TrainerError(
            f"row {row.key!r}: given {len(tokens)} ids and {given} log-probabilities, advantages, weights and versions, "
            "expected equal numbers"
        )
    if len(tokens) > max_tokens:
        raise TrainerError(
            f"row {row.key!r}: given {len(tokens)} tokens, expected at most {max_tokens}; raise trainer.*.max_tokens"
        )
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise TrainerError(
            f"row {row.key!r}: given token id {int(tokens.max())}, expected ids below the model's vocabulary of "
            f"{vocabulary}; was it sampled by another model?"
        )
    if not np.isfinite(weight).all() or (weight < 0).any() or (len(weight) and weight[0] != 0):
        raise TrainerError(
            f"row {row.key!r}: expected finite weights of at least 0, and 0 for the first token (nothing predicts it)"
        )


@dataclass(frozen=True, slots=True)
class Turns:
    """Sampled tokens of each trajectory in order, over all its rows, with their rewards."""

    # where a trajectory's tokens stand in the flat arrays, as they were written
    cells: tuple[Ints, ...]
    ends: tuple[Ints, ...]  # which of its tokens are the last of a turn; the last token always is
    rewards: Doubles  # [N], what each token brought

    def __iter__(self) -> Iterator[tuple[Ints, Ints]]:
        """Cells and ends of each trajectory."""
        return zip(self.cells, self.ends, strict=True)

    @staticmethod
    def of(rows: Sequence[_Laid]) -> Turns:
        """Put rows together by their trajectory.

        Raises:
            TrainerError: rewards or ends of turns do not fit the row's tokens.
        """
        parts: dict[str, list[tuple[int, Ints, Marks]]] = {}
        rewards, begun = [], 0
        for one in rows:
            _check_turns(one.row, one.places)
            own = np.arange(begun, begun + len(one.places), dtype=np.int64)
            part = (one.number, own, np.isin(one.places, one.row.ends))
            parts.setdefault(one.trajectory, []).append(part)
            rewards.append(np.asarray(one.row.rewards, dtype=np.float64)[one.places])
            begun += len(one.places)
        whole = [sorted(own, key=lambda part: part[0]) for own in parts.values()]
        return Turns(
            cells=tuple(np.concatenate([cells for _, cells, _ in own]) for own in whole),
            ends=tuple(np.flatnonzero(np.concatenate([e for _, _, e in own])) for own in whole),
            rewards=np.concatenate(rewards) if rewards else np.zeros(0),
        )


def _check_turns(row: TrainRow, places: npt.NDArray[np.intp]) -> None:
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


class Rectangle:
    """Flat arrays [N] of tokens as rectangles [responses, longest], by the number of each token's response.

    Equal numbers stand together.
    """

    def __init__(self, numbers: Ints) -> None:
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        counts = np.diff(begins, append=len(numbers))
        self._rows = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        self._columns = np.arange(len(numbers)) - starts[self._rows]
        self.mask: Marks = np.zeros((len(counts), int(counts.max(initial=0))), dtype=np.bool_)
        self.mask[self._rows, self._columns] = True

    def of(self, flat: Floats) -> Doubles:
        """Flat values as a rectangle, in doubles; other cells are 0."""
        found = np.zeros(self.mask.shape)
        found[self._rows, self._columns] = flat
        return found

    def flat(self, cells: npt.NDArray[np.generic]) -> Floats:
        """Return the tokens of a padded rectangle as flat float32."""
        found: Floats = cells[self._rows, self._columns].astype(np.float32)
        return found
