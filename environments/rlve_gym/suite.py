"""The worker's side of `rlve_gym`: loads single environments of the package `Gym` and answers questions about them.

Importing `Gym.environments` would load all four hundred modules, which takes half a minute. Here the package is put in place
without running it, its tables are read from its source, and a module is imported with its first problem. The base module imports
torch for one call that seeds it; a stand-in takes its place.
"""

from __future__ import annotations

import ast
import copy
import json
import random
import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from triforge.environments.safe_eval import only_formulas
from triforge.environments.worker_loop import Handlers, Refused, serve

_KEPT = 512  # problems, between asking and grading
_TABLES = {
    "environments": "identifier2environment",
    "parameter_controllers": "identifier2controller",
}
_MARKS = ("<answer>", "</answer>")
EVALUATING = ("Gym.environments.differentiate", "Gym.environments.integral")
"""Modules whose verifiers let sympy evaluate the answer; a test looks for others."""


class Suite:
    """The environments by name."""

    def __init__(self) -> None:
        _stand_in_for_torch()
        folder = _folder()
        self._where = {kind: _read_table(folder / kind, table) for kind, table in _TABLES.items()}
        self._made = lru_cache(_KEPT)(self._make)
        self._numpy = import_module("numpy")

    def handlers(self) -> Handlers:
        return {"names": self.names, "level": self.level, "ask": self.ask, "grade": self.grade}

    def names(self) -> list[str]:
        """Every environment that has a controller."""
        return sorted(set(self._where["environments"]) & set(self._where["parameter_controllers"]))

    def level(self, environment: str, level: int) -> list[dict[str, Any]]:
        """Return the parameters that the environment's controller offers after `level` updates."""
        controller = self._find("parameter_controllers", environment)()
        for _ in range(level):
            controller.update()
        offered: list[dict[str, Any]] = controller.get_parameter_list()
        return offered

    def ask(self, **params: Any) -> dict[str, Any]:
        problem = self._made(json.dumps(params, sort_keys=True))
        reference = problem.parameter.get("reference_answer")
        gold = None if reference is None else str(reference)
        if gold is not None and not gold.strip():
            raise Refused("its answer is empty, and an empty answer is never graded")
        if gold is not None and not problem.verifier(_marked(gold))["accuracy"]:
            gold = None
        return {"text": problem.prompt_generator(), "gold": gold}

    def grade(self, answer: str, **params: Any) -> dict[str, Any]:
        """Return the verifier's `reward` of an answer in [-1, 1], and its `accuracy` and `format_score`, 0 or 1."""
        problem = self._made(json.dumps(params, sort_keys=True))
        try:
            grade = problem.verifier(_marked(answer))
        except Exception:  # noqa: BLE001  an answer at which a verifier raises is none
            grade = {"reward": -1.0, "accuracy": 0.0, "format_score": 0.0}
        return {name: float(value) for name, value in grade.items()}

    def _make(self, key: str) -> Any:
        params = json.loads(key)
        problem = self._find("environments", params["environment"])(answer_markers=_MARKS)
        # as its `generator` does, without a thread that cannot be stopped: the parent ends a slow process
        problem.seed, problem.parameter = params["seed"], copy.deepcopy(params["parameter"])
        random.seed(params["seed"])
        self._numpy.random.seed(params["seed"])
        try:
            problem._generate()
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise Refused(
                f"{params['environment']} cannot be made of {params['parameter']}: {type(error).__name__} {error}"
            ) from error
        return problem

    def _find(self, kind: str, name: str) -> Any:
        where = self._where[kind].get(name)
        if where is None:
            raise Refused(
                f"field environment: {name!r} is unknown; the README names the list of all"
            )
        module, attribute = where
        loaded = getattr(import_module(module), attribute)
        if loaded.__module__.startswith(EVALUATING):
            only_formulas()
        return loaded


def _marked(answer: str) -> str:
    return f"{_MARKS[0]}{answer}{_MARKS[1]}"


def _stand_in_for_torch() -> None:
    torch: Any = ModuleType("torch")
    torch.manual_seed = lambda seed: None  # noqa: ARG005
    torch.cuda = SimpleNamespace(manual_seed_all=lambda seed: None)  # noqa: ARG005
    sys.modules["torch"] = torch


def _folder() -> Path:
    """Return the package's folder, with its two large packages in place but not run."""
    spec = find_spec("Gym")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package rlve-gym is missing")
    folder = Path(next(iter(spec.submodule_search_locations)))
    for kind in _TABLES:
        package = ModuleType(f"Gym.{kind}")
        package.__path__ = [str(folder / kind)]
        sys.modules[f"Gym.{kind}"] = package
    return folder


def _read_table(package: Path, table: str) -> dict[str, tuple[str, str]]:
    """Read a table of the package's source: name to (module, class)."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    modules: dict[str, str] = {}
    classes: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {alias.asname or alias.name: node.module for alias in node.names}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if [getattr(target, "id", "") for target in node.targets] != [table]:
                continue
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                    classes[str(key.value)] = (modules[value.id], value.id)
    return classes


if __name__ == "__main__":
    serve(lambda: Suite().handlers())
