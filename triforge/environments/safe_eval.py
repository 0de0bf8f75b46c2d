"""Suites whose scorers evaluate an answer as Python: what they may evaluate is held to literals and formulas.

An answer is written by a model. Evaluated as it stands it would run with the service's rights, and could read the right answer
from the scorer beside it. Used in a suite's own process, after its modules have been imported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_FORMULA: Final = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
    ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List,
)  # fmt: skip
_FUNCTIONS: Final = frozenset({"cbrt", "real_root", "root", "sqrt"})  # of sympy, beside its classes


def only_literals(module: ModuleType) -> None:
    """From now on a module that calls `eval` reads literals: numbers, texts, and lists, tuples, sets, dicts of them."""
    vars(module)["eval"] = ast.literal_eval


def only_formulas() -> None:
    """From now on sympy reads formulas: its own symbols, numbers, constants, classes and roots. Idempotent."""
    parser = import_module("sympy.parsing.sympy_parser")
    basic = import_module("sympy").Basic
    written = parser.stringify_expr
    if getattr(written, "checked", False):
        return

    def checked(text: str, local_dict: Any, global_dict: Any, transformations: Any) -> str:
        code: str = written(text, local_dict, global_dict, transformations)
        known = {**global_dict, **local_dict}
        for node in ast.walk(ast.parse(code.strip(), mode="eval")):
            named = not isinstance(node, ast.Name) or _is_formula(node.id, known, basic)
            if not isinstance(node, _FORMULA) or not named:
                raise ValueError(f"{ast.unparse(node)[:60]} is no part of a formula")
        return code

    vars(checked)["checked"] = True
    vars(parser)["stringify_expr"] = checked


def _is_formula(name: str, known: Mapping[Any, Any], basic: type) -> bool:
    found = known.get(name)
    if isinstance(found, type):
        return issubclass(found, basic)
    return name in _FUNCTIONS or isinstance(found, basic)
