"""The table of serving's figures is made of what its two parts find, under the names that they give it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from bench import serving

BENCH = Path(serving.__file__).parent  # read, not imported: they bring torch and the services

WAY = {"rate": 100.0, "p50_ms": 5.0, "p99_ms": 9.0, "service_cpu_ms": 1.0}
SLOWER = WAY | {"rate": 50.0, "p50_ms": 7.5}
WAYS = {name: {"directly": WAY, "service": SLOWER} for name in ("one by one", "together", "paced")}
RELOAD = {
    "updates": 20, "clients": 32, "requests": 900, "failed": 0, "wrong_versions": 0, "wrong_weights": 0, "ratio": 1.5,
    "paused_share": 0.02,
}  # fmt: skip


def read(function: Any) -> set[str]:
    """The names by which a function takes values out of what it is given."""
    tree = ast.parse(inspect.getsource(function))
    found = {n.slice.value for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)}  # fmt: skip
    return {name for name in found if isinstance(name, str)}


def written(part: str) -> set[str]:
    """The names under which a part puts values anywhere."""
    tree = ast.parse((BENCH / f"{part}.py").read_text())
    nodes: list[Any] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            nodes += node.keys
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            nodes.append(node.slice)
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ((serving.gateway_rows, serving._added), "gateway"),
        ((serving.reload_rows,), "reload"),
    ],
)
def test_every_name_that_the_table_asks_for_is_one_that_the_part_gives(
    reads: tuple[Any, ...], writes: str
) -> None:
    asked = set().union(*(read(function) for function in reads))
    assert len(asked) > 5, "the functions take their values in another way; look there"
    assert asked - written(writes) == set()


def test_the_ways_to_ask_are_called_in_the_table_as_they_are_where_they_are_measured() -> None:
    source = (BENCH / "gateway.py").read_text()
    assert all(f'"{name}"' in source for name in WAYS)
    assert all(f'"{name}"' in inspect.getsource(serving.gateway_rows) for name in WAYS)


def test_a_figure_is_met_or_missed_by_what_is_wanted_of_it() -> None:
    found = {"ways": WAYS, "rollouts": [{"rollouts": 512, "errors": 0}]}
    rows = {row.what: row for row in serving.gateway_rows(found)}
    shown = {what: (row.measured, row.met) for what, row in rows.items()}
    assert shown == {
        "64 requests in flight, one by one: share of the direct throughput": ("50%", True),
        "the same, 16 requests in one of HTTP": ("50%", None),
        "64 clients, paced: added p50": ("2.5 ms", True),
        "64 requests in flight, one by one: added p50 (queues for the cores)": ("2.5 ms", None),
        "errors of 512 rollouts at once": ("0", True),
    }
    slow = {**WAYS, "one by one": {"directly": WAY, "service": WAY | {"rate": 39.0}}}
    first, *_ = serving.gateway_rows({"ways": slow, "rollouts": []})
    assert (first.measured, first.met) == ("39%", False)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [({}, []), ({"failed": 1}, [0]), ({"wrong_weights": 1}, [1]), ({"ratio": 2.1}, [2])],
)
def test_an_update_under_load_may_fail_nothing_and_mix_nothing(
    changed: dict[str, Any], missed: list[int]
) -> None:
    rows = list(serving.reload_rows(RELOAD | changed))
    assert [number for number, row in enumerate(rows) if row.met is False] == missed
