"""The example of docs/environments.md is an environment: it runs as it stands there, and it keeps the contract."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from triforge.rollout.protocols import EnvironmentFamily
from triforge.testing.check_environment import check_environment, require

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
MARK = "<!-- example: run by tests/contract/test_write_your_own.py -->"
LINES, STEPS = 40, 10


def example() -> str:
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"{MARK}\n```python\n")
    assert found
    return rest.partition("\n```")[0]


async def test_the_example_keeps_the_contract() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(example(), str(PAGE), "exec"), names)
    made = names["AddingFamily"]()
    assert isinstance(made, EnvironmentFamily)
    require(await check_environment(made, options={"tries": 3}, generator_options={"b": 50}))


def test_it_is_as_short_as_promised() -> None:
    code = [line for line in example().splitlines() if line.strip()]
    assert len(code) <= LINES
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("## Bring your own")[2].partition(MARK)[0]
    assert len(re.findall(r"^\d+\. ", section, re.MULTILINE)) <= STEPS
