"""Limits for suites whose scorers evaluate an answer as Python: only literals and formulas.

A model writes the answer. Without a limit it would run with the service's rights, and could read the right answer from the
scorer. These functions are called in a suite's own process, after its modules have been imported.
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
_FUNCTIONS: Final = frozenset(
    {"cbrt", "real_root", "root", "sqrt"}
)  # of sympy, in addition to its classes


def only_literals(module: ModuleType) -> None:
    """Make `eval` in a module read only literals: numbers, texts, and lists, tuples, sets, dicts of them."""
    vars(module)["eval"] = ast.literal_eval


def only_formulas() -> None:
    """Make sympy read only formulas: its own symbols, numbers, constants, classes and roots. Idempotent."""
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
    value = known.get(name)
    if isinstance(value, type):
        return issubclass(value, basic)
    return name in _FUNCTIONS or isinstance(value, basic)
