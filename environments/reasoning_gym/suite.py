"""The worker's side of `reasoning_gym`: imports the package and answers questions about its datasets."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib import import_module
from typing import Any

from triforge.environments.safe_eval import only_formulas, only_literals
from triforge.environments.worker_loop import Handlers, Refused, serve

_KEPT = 512  # datasets of one entry, between asking and grading
EVALUATING = (
    "algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion",
    "games.n_queens",
)  # fmt: skip
"""Modules whose scorers call `eval` on the answer, to read a list; a test looks for others."""
_NONSENSE = "there is no answer"
_NAN = re.compile(r"(?<![a-z])nanj?(?![a-z])", re.IGNORECASE)


class Suite:
    """The datasets by name."""

    def __init__(self) -> None:
        import_module("reasoning_gym")  # registers them
        for name in EVALUATING:
            only_literals(import_module(f"reasoning_gym.{name}"))
        only_formulas()
        self._factory = import_module("reasoning_gym.factory")
        self._made = lru_cache(_KEPT)(self._make)

    def handlers(self) -> Handlers:
        return {"names": self.names, "ask": self.ask, "grade": self.grade}

    def names(self) -> dict[str, bool]:
        """Every dataset, and whether it has difficulty levels."""
        curricula = self._factory.CURRICULA
        return {name: name in curricula for name in sorted(self._factory.DATASETS)}

    def ask(self, **params: Any) -> dict[str, Any]:
        dataset, entry = self._made(json.dumps(params, sort_keys=True))
        if _score(dataset, entry, _NONSENSE) >= 1.0:
            raise Refused(f"dataset {params['dataset']!r} takes any answer to this question")
        answer = entry["answer"]
        accepted = isinstance(answer, str) and _score(dataset, entry, answer) >= 1.0
        return {"text": str(entry["question"]), "gold": answer if accepted else None}

    def grade(self, answer: str, **params: Any) -> float:
        dataset, entry = self._made(json.dumps(params, sort_keys=True))
        return _score(dataset, entry, answer)

    def _make(self, key: str) -> tuple[Any, Any]:
        params = json.loads(key)
        name, seed, level = params["dataset"], params["seed"], params["level"]
        if name not in self._factory.DATASETS:
            raise Refused(f"field dataset: {name!r} is unknown; reasoning_gym.DATASETS lists all")
        config: dict[str, Any] = {}
        if level is not None:
            config = self._levelled(name, level, seed)
        config |= {**params["config"], "seed": seed, "size": 1}
        try:
            dataset = self._factory.create_dataset(name, **config)
            return dataset, dataset[0]
        except (TypeError, ValueError, AssertionError) as error:
            raise Refused(
                f"dataset {name!r} refuses level {level} with {params['config']}: {error}"
            ) from error

    def _levelled(self, name: str, level: int, seed: int) -> dict[str, Any]:
        """Return the settings of a level; attributes with fewer levels stay at their last."""
        if name not in self._factory.CURRICULA:
            raise Refused(f"dataset {name!r} has no difficulty levels; leave the level out")
        curriculum = self._factory.create_curriculum(name)
        deepest = max((len(a.levels) for a in curriculum.attributes.values()), default=1)
        if level >= deepest:
            raise Refused(f"dataset {name!r} has the levels 0 to {deepest - 1}, given {level}")
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration({"seed": seed, "size": 1})
        return dict(vars(made))


def _score(dataset: Any, entry: Any, answer: str) -> float:
    """Return the dataset's score; 0 for an answer at which its scorer raises.

    NaN is far from no number: `complex_arithmetic` would give it the full score.
    """
    if _NAN.search(answer) and answer != entry["answer"]:
        return 0.0
    try:
        return float(dataset.score_answer(answer=answer, entry=entry))
    except Exception:  # noqa: BLE001  scorers raise whatever `int` and their like raise
        return 0.0


if __name__ == "__main__":
    serve(lambda: Suite().handlers())
