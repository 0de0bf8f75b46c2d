"""An ensemble of critics Q(state, action) learnt from replay, and actions improved by it (PA-RL, arXiv 2412.06685).

    Cal-QL   alpha * (mean over the policy's actions of max(Q(s, a), V(s)) - Q(s, a of the data)) + (Q(s, a of the data) - target)^2
    target   r + gamma * max over the policy's actions a' at s' of the mean of two drawn members' slow copies
    actions  of K samples the one that the ensemble's mean values most is played, and imitated by its measured reward

V(s) is the return that the data had from s on: below it nothing is pushed down (Cal-QL, arXiv 2303.05479). The members are small
networks over features of (state, action) in numpy, so that workers without torch can ask them; `text_features` makes the features
of texts. Text has no gradient by the action, so there is no ascent along dQ/da.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from triforge.algorithms.registry import Options
from triforge.errors import InputError

Floats = npt.NDArray[np.floating[Any]]
_MOST_WORDS = 64  # of a state, the last ones; the crosses with an action's words are counted
_MOST_ACTED = 32  # of an action, the first ones
_WEIGHTS = ("w1", "b1", "w2", "b2")


class CriticOptions(Options):
    """How an ensemble learns. The defaults are the published ones but for the sizes."""

    members: int = Field(10, ge=1, le=100)
    """Critics of the ensemble; candidates are compared by their mean."""
    subset: int = Field(2, ge=1, le=100)
    """Members drawn for a target."""
    hidden: int = Field(32, ge=1, le=4096)
    """Units of a member's hidden layer."""
    learning_rate: float = Field(3e-4, gt=0)
    """Adam's step size."""
    gamma: float = Field(0.99, ge=0.0, le=1.0)
    """Discount of a step."""
    alpha: float = Field(0.005, ge=0.0)
    """Weight of calibrated conservatism; 0 is Q-learning alone."""
    tau: float = Field(0.005, gt=0.0, le=1.0)
    """How fast the copies follow from which targets are read."""
    batch: int = Field(256, ge=1)
    """Transitions of an update."""
    online_share: float = Field(0.5, ge=0.0, le=1.0)
    """Of a batch, what the run played itself; the rest is of `offline_run`."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A step as the critic learns it; actions are rows of features.

    Attributes:
        taken: features [D] of the state and the action of the data.
        sampled: features [S, D] of the state and actions of the policy.
        following: features [S', D] of the next state and actions of the policy; None at the end.
        value: what the data returned from the state on.
    """

    taken: Floats
    sampled: Floats
    following: Floats | None
    reward: float
    value: float


@dataclass(slots=True)
class Replay:
    """Transitions in two partitions: those that were there before, and those of the run itself, of which the last are kept."""

    offline: Sequence[Transition] = ()
    online: deque[Transition] = field(default_factory=deque)

    def draw(self, count: int, online_share: float, rng: np.random.Generator) -> list[Transition]:
        """With replacement; from one partition alone while the other is empty. InputError if both are."""
        if not self.offline and not self.online:
            raise InputError("replay: given no transitions, expected some")
        share = online_share if self.offline and self.online else float(bool(self.online))
        new = rng.random(count) < share
        return [
            part[int(rng.integers(len(part)))]
            for part in (self.online if one else self.offline for one in new)
        ]


@dataclass(frozen=True, slots=True)
class CalQl:
    """The loss, its derivatives by the values, and the share of the policy's actions that are pushed down."""

    loss: float
    by_sampled: Floats
    by_taken: Floats
    pushed: float


def cal_ql(
    sampled: Floats, taken: Floats, values: Floats, targets: Floats, *, alpha: float
) -> CalQl:
    """Calibrated conservative Q-learning: `sampled` [N, S], the others [N]."""
    above = sampled > values[:, None]
    error = taken - targets
    conservative = np.where(above, sampled, values[:, None]).mean() - taken.mean()
    return CalQl(
        loss=float(alpha * conservative + (error**2).mean()),
        by_sampled=alpha * above / sampled.size,
        by_taken=(2.0 * error - alpha) / len(taken),
        pushed=float(above.mean()),
    )


class CriticEnsemble:
    """Members with one hidden layer, learnt side by side with Adam."""

    def __init__(self, width: int, options: CriticOptions | None = None, *, seed: int = 0) -> None:
        self.options = options or CriticOptions()
        rng, o = np.random.default_rng(seed), self.options
        self.weights: dict[str, Floats] = {
            "w1": rng.normal(0.0, width**-0.5, (o.members, width, o.hidden)),
            "b1": rng.normal(0.0, 0.5, (o.members, 1, o.hidden)),
            "w2": rng.normal(0.0, o.hidden**-0.5, (o.members, o.hidden, 1)),
            "b2": np.zeros((o.members, 1, 1)),
        }
        self._slow = {name: array.copy() for name, array in self.weights.items()}
        self._first = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self._second = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.width, self.updates = width, 0

    def values(self, features: Floats) -> Floats:
        """Q [N] of features [N, D]: the members' mean."""
        found: Floats = _forward(self.weights, features)[0].mean(axis=0)
        return found

    def update(self, batch: Sequence[Transition], rng: np.random.Generator) -> dict[str, float]:
        """One step of Adam on some transitions; returns measures.

        `overestimate` is by how much Q of the data is above what the data returned; without conservatism it grows.
        """
        o = self.options
        rows = np.stack([t.taken for t in batch])
        values = np.array([t.value for t in batch])
        width = max(len(t.sampled) for t in batch)  # fewer are repeated
        others = np.concatenate([np.resize(t.sampled, (width, self.width)) for t in batch])
        targets = self._targets(batch, rng)
        q, hidden = _forward(self.weights, np.concatenate([rows, others]))
        slopes, found = np.zeros_like(q), []
        for member, one in enumerate(q):
            sampled = one[len(rows) :].reshape(len(batch), width)
            loss = cal_ql(sampled, one[: len(rows)], values, targets, alpha=o.alpha)
            slopes[member] = np.concatenate([loss.by_taken, loss.by_sampled.reshape(-1)])
            found.append(loss)
        self._learn(np.concatenate([rows, others]), hidden, slopes)
        data = q[:, : len(rows)]
        return {
            "loss": float(np.mean([one.loss for one in found])),
            "td_error": float(((data - targets) ** 2).mean()),
            "pushed_share": float(np.mean([one.pushed for one in found])),
            "value_mean": float(data.mean()),
            "return_mean": float(values.mean()),
            "overestimate": float((data - values).mean()),
            "spread": float(data.std(axis=0).mean()),
        }

    def _targets(self, batch: Sequence[Transition], rng: np.random.Generator) -> Floats:
        o = self.options
        drawn = rng.choice(o.members, size=min(o.subset, o.members), replace=False)
        slow = {name: array[drawn] for name, array in self._slow.items()}
        ahead = [t.following for t in batch if t.following is not None]
        found = _forward(slow, np.concatenate(ahead))[0].mean(axis=0) if ahead else np.zeros(0)
        best, at, targets = 0.0, 0, []
        for t in batch:
            best = 0.0
            if t.following is not None:
                best, at = float(found[at : at + len(t.following)].max()), at + len(t.following)
            targets.append(t.reward + o.gamma * best)
        return np.array(targets)

    def _learn(self, features: Floats, hidden: Floats, slopes: Floats) -> None:
        back = slopes[:, :, None]
        inner = back * (1.0 - hidden**2) * self.weights["w2"].transpose(0, 2, 1)
        gradients = {
            "w1": features.T @ inner,
            "b1": inner.sum(axis=1, keepdims=True),
            "w2": hidden.transpose(0, 2, 1) @ back,
            "b2": back.sum(axis=1, keepdims=True),
        }
        self.updates += 1
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            rate = self.options.learning_rate / (1.0 - 0.9**self.updates)
            scale = np.sqrt(second / (1.0 - 0.999**self.updates)) + 1e-8
            self.weights[name] -= rate * first / scale
            self._slow[name] += self.options.tau * (self.weights[name] - self._slow[name])

    def saved(self) -> bytes:
        """Everything as an .npz file."""
        kinds = {
            "": self.weights,
            "slow_": self._slow,
            "first_": self._first,
            "second_": self._second,
        }
        arrays: dict[str, Any] = {
            kind + name: a for kind, part in kinds.items() for name, a in part.items()
        }
        sink = io.BytesIO()
        np.savez(sink, updates=np.array(self.updates), **arrays)
        return sink.getvalue()

    @classmethod
    def restored(cls, data: bytes, options: CriticOptions | None = None) -> CriticEnsemble:
        """From `saved`, of the sizes saved if none are given; InputError if it is none, or of other sizes."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                held: dict[str, Any] = dict(file)
            members, width, hidden = held["w1"].shape
            made = cls(width, options or CriticOptions(members=members, hidden=hidden))
            for kind, part in (("", made.weights), ("slow_", made._slow), ("first_", made._first), ("second_", made._second)):  # fmt: skip
                for name in _WEIGHTS:
                    if part[name].shape != held[kind + name].shape:
                        raise ValueError(f"{kind + name} has shape {held[kind + name].shape}")
                    part[name] = np.asarray(held[kind + name], dtype=np.float64)
            made.updates = int(held["updates"])
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"action critic: no saved ensemble of these sizes: {error}") from error
        return made


def _forward(weights: dict[str, Floats], features: Floats) -> tuple[Floats, Floats]:
    """Values [members, N] and the hidden layer."""
    hidden = np.tanh(features @ weights["w1"] + weights["b1"])
    return (hidden @ weights["w2"] + weights["b2"])[:, :, 0], hidden


def returns_of(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return the discounted rewards from each step on."""
    found, total = list[float](), 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        found.append(total)
    return found[::-1]


def text_features(state: str, action: str, width: int = 512) -> Floats:
    """Signed hashed counts [width] of an action's words, alone and with their place and each word of the state; of length 1."""
    acted, seen = action.split()[:_MOST_ACTED], state.split()[-_MOST_WORDS:]
    found = np.zeros(width, dtype=np.float32)
    for place, word in enumerate(acted):
        for other in ("", str(place), *seen):
            number = zlib.crc32(f"{word}\0{other}".encode(errors="replace"))
            found[number % width] += 1.0 if number >> 31 else -1.0
    length = float(np.linalg.norm(found))
    return found / length if length else found
