"""VLM-RL: a grid world that is seen as images only, with the contrast of goals in words or success alone as reward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from environments.gui.png import encode
from methods.vlm_rl.encoders import ColourEncoder
from methods.vlm_rl.options import VlmRlOptions
from methods.vlm_rl.relabelling import Relabeller
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.credit import credit_steps
from triforge.algorithms.samples import JudgedStep, Rollout, Sample
from triforge.types import ImageRef
from triforge.vision.files import describe

GOALS = VlmRlOptions(positive=("all green",), negative=("all red",), form="weighted")
GREEN, RED = (30, 180, 30), (220, 30, 30)
SIDE, GOAL, TURNS, ROLLOUTS, VIEW = 8, (6, 6), 16, 8, 3
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))
Place = tuple[int, int]


def view(at: Place) -> bytes:
    """Return the squares around a place from above: green near the goal, red elsewhere."""
    near = range(-VIEW, VIEW + 1)
    green = [
        max(abs(at[0] + x - GOAL[0]), abs(at[1] + y - GOAL[1])) <= VIEW for y in near for x in near
    ]
    return encode(len(near), len(near), b"".join(bytes(GREEN if g else RED) for g in green))


PLACES = [(x, y) for x in range(SIDE) for y in range(SIDE)]
IMAGES = {at: describe(view(at)).id for at in PLACES}


async def scores() -> dict[str, float]:
    """Return what the product's encoder and contrast make of each image."""
    held = {(ref := describe(view(at))).id: (ref, view(at)) for at in PLACES}

    async def get(ref: ImageRef) -> bytes:
        return held[ref.id][1]

    refs = [ref for ref, _ in held.values()]
    found = await Relabeller(ColourEncoder(get), linger_s=0.0).rewards(refs, GOALS)
    return {ref.id: reward for ref, reward in zip(refs, found, strict=True)}


def curve(seed: int, *, contrast: bool, updates: int = 45) -> Iterator[float]:
    """Success in each update. The policy is a table by image; without the contrast it sees success alone."""
    known = asyncio.run(scores()) if contrast else {}
    rng = np.random.default_rng(seed)
    changes = {"use_votes": True, "use_outcome": False} if known else {}
    algorithm = resolve("gigpo", changes)
    table: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for _ in range(updates):
        seen, done, after, outcomes = list[list[str]](), list[list[int]](), list[list[str]](), []
        for _ in range(ROLLOUTS):
            at, rows = (0, 0), (list[str](), list[int](), list[str]())
            for _ in range(TURNS):
                image = IMAGES[at]
                logits = table.setdefault(image, np.zeros(len(MOVES)))
                chance = np.exp(logits - logits.max())
                move = int((np.cumsum(chance) < rng.random() * chance.sum()).sum())
                to = (at[0] + MOVES[move][0], at[1] + MOVES[move][1])
                at = to if min(to) >= 0 and max(to) < SIDE else at
                for row, value in zip(rows, (image, move, IMAGES[at]), strict=True):
                    row.append(value)  # type: ignore[attr-defined]
            seen.append(rows[0])
            done.append(rows[1])
            after.append(rows[2])
            outcomes.append(1 if at == GOAL else -1)
        yield outcomes.count(1) / ROLLOUTS
        rollouts = [
            Rollout(
                outcome=outcome,
                score=(outcome + 1) / 2,
                steps=[
                    JudgedStep(
                        response=Sample(), state=image, action=str(move), score=known.get(view)
                    )
                    for image, move, view in zip(*turns, strict=True)
                ],
            )
            for outcome, *turns in zip(outcomes, seen, done, after, strict=True)
        ]
        credit_steps(rollouts, algorithm)
        for moves, rollout in zip(done, rollouts, strict=True):
            for move, step in zip(moves, rollout.steps, strict=True):
                chance = np.exp(table[step.state] - table[step.state].max())
                push = np.eye(len(MOVES))[move] - chance / chance.sum()
                table[step.state] += 0.15 * step.response.advantage * push
