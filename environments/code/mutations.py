"""Programs that differ from a given one in a single place; runs in the sandbox, with that program as its input.

Reads Python source from standard input, prints a JSON list of at most `MOST` sources: a comparison, an operator, a number or the
first of two branches is another one. Most of them compute something else.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator

MOST = 8
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutants(source: str) -> list[str]:
    """Return at most `MOST` changed programs, from places spread evenly over the source."""
    count = sum(1 for _ in _places(ast.parse(source)))
    chosen = sorted({i * count // MOST for i in range(MOST)}) if count else []
    return [_changed(source, place) for place in chosen]


def _changed(source: str, place: int) -> str:
    tree = ast.parse(source)
    for index, (node, name) in enumerate(_places(tree)):
        if index == place:
            _change(node, name)
            break
    return ast.unparse(tree)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each place that can be changed as (node, field), in the order of the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _OTHER:
            yield node, "op"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
            yield node, "ops"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "value"
        elif isinstance(node, ast.IfExp):
            yield node, "test"


def _change(node: ast.AST, name: str) -> None:
    now = getattr(node, name)
    if name == "value":
        setattr(node, name, now + 1)
    elif name == "test":
        setattr(node, name, ast.UnaryOp(op=ast.Not(), operand=now))
    elif name == "ops":
        setattr(node, name, [_OTHER[type(now[0])](), *now[1:]])
    else:
        setattr(node, name, _OTHER[type(now)]())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(mutants(sys.stdin.read())))
