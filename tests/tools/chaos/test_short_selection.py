"""The short selection of `make chaos`: real processes, hurt at seeded moments, and nothing lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.catalogue import chosen
from chaos.play import Player

SEED = 7
LIMIT_S = 120.0  # a machine that runs other tests at the same time is no place to measure seconds


@pytest.mark.timeout(900)
async def test_no_promise_is_broken_however_a_deployment_is_hurt(tmp_path: Path) -> None:
    lines: list[str] = []
    player = Player(tmp_path, seed=SEED, tell=lines.append, limit_s=LIMIT_S)
    results = await player.play(chosen([], quick=True), rounds=1)
    assert {r.scenario: r.wrong for r in results if r.wrong} == {}, "\n".join(lines)
    assert len(results) == 3
