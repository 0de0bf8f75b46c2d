"""The rows of a training step, checked and laid out as flat arrays over their scored tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.trainer.token_batches import Floats, Inputs, Ints, Sequences
from services.trainer.trajectories import Courses
from services.trainer.vision import inputs_of
from triforge.errors import TrainerError
from triforge.types import TrainRow


@dataclass(frozen=True, slots=True)
class StepData:
    """The rows of a training step. Flat float32 arrays [N] hold what belongs to the scored tokens.

    Attributes:
        sequences: the rows that have something to train on, in the order of the batch.
        old: behaviour log-probabilities.
        advantages: A of each token.
        weights: how much each token counts.
        lags: int64 [N], how many versions ago each token was sampled; 0 is the weights that are now trained.
        responses: int64 [N], the number of each token's response: neighbours of one advantage in one row, up to the end of a turn.
        tasks: of each row.
        courses: the tokens of each trajectory, with what they brought; None without a critic.
    """

    sequences: Sequences
    old: Floats
    advantages: Floats
    weights: Floats
    lags: Ints
    responses: Ints
    tasks: tuple[str, ...]
    courses: Courses | None = None

    @property
    def same(self) -> npt.NDArray[np.bool_]:
        """[N], whether the token was sampled with the weights that are now trained."""
        found: npt.NDArray[np.bool_] = self.lags == 0
        return found

    def scale(self, cells: Ints, *, summed: bool) -> float:
        """What the weights of an update's tokens are multiplied with, so that it has the scale of the whole batch.

        It is (sum of the batch's weights) / (sum of the update's), and the mean of all updates, each by its share, is the
        batch. Where tokens are summed up (`step_sum`), weights sum to more in long responses, which must not be divided
        away: there the share of an update is that of its responses.
        """
        if summed:
            return len(np.unique(self.responses)) / len(np.unique(self.responses[cells]))
        whole = float(self.weights.sum(dtype=np.float64))
        return whole / float(self.weights[cells].sum(dtype=np.float64))

    @staticmethod
    def from_rows(
        rows: Sequence[TrainRow], *, max_tokens: int, vocabulary: int, version: int
    ) -> StepData:
        """Check rows and lay them out. Rows whose weights are all 0 are context only and cost nothing.

        Args:
            rows: of a batch.
            max_tokens: longest row that is allowed.
            vocabulary: ids lie below it.
            version: of the weights that are trained.

        Raises:
            TrainerError: a row is too long, holds an id the model does not know, or a value that is not finite.
        """
        ids, scored, old, advantages, weights, lags, responses = [], [], [], [], [], [], []
        tasks: list[str] = []
        seeing, inputs = any(row.images for row in rows), list[Inputs]()
        begun = 0
        for row in rows:
            tokens = np.asarray(row.ids, dtype=np.int64)
            weight = np.asarray(row.weights, dtype=np.float32)
            _check(row, tokens, weight, max_tokens, vocabulary)
            places = np.flatnonzero(weight)
            if not len(places):
                continue
            ids.append(tokens)
            tasks.append(row.task_id)
            scored.append(places)
            if seeing:
                inputs.append(inputs_of(row, int(places[-1])))
            weights.append(weight[places])
            lags.append(version - np.asarray(row.versions, dtype=np.int64)[places])
            old.append(np.asarray(row.logprobs, dtype=np.float32)[places])
            advantages.append(np.asarray(row.advantages, dtype=np.float32)[places])
            if not (np.isfinite(old[-1]).all() and np.isfinite(advantages[-1]).all()):
                raise TrainerError(
                    f"row {row.key!r}: given a log-probability or advantage that is not finite, expected numbers"
                )
            begins = (np.diff(places) != 1) | (np.diff(advantages[-1]) != 0)
            begins |= np.isin(places[:-1], row.ends)
            responses.append(begun + np.concatenate([[0], np.cumsum(begins)]))
            begun = int(responses[-1][-1]) + 1
        return StepData(
            sequences=Sequences(ids, scored, inputs),
            old=_flat(old),
            advantages=_flat(advantages),
            weights=_flat(weights),
            lags=np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64),
            responses=np.concatenate(responses) if lags else np.zeros(0, dtype=np.int64),
            tasks=tuple(tasks),
            courses=Courses.of(rows) if any(row.ends for row in rows) else None,
        )


def _flat(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


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
