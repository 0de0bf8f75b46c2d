"""The one-box command with SmolLM2 as policy and judge, on one card in turns and on all cards; the rehearsal has a tiny policy alone.

`of_plan` is the most memory of a card that `nvidia-smi` showed, divided by what the plan has for it: 1 says that the plan is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.console import Console

from bench.gpu.device import GPU
from bench.gpu.loop_part import smollm2, speeds
from bench.gpu.supervise import ROOT, SkipCase
from triforge.cli.started import deployment
from triforge.cli.train import Trained, conduct
from triforge.cli.training import Training
from triforge.config import Settings, parse
from triforge.errors import ConfigError
from triforge.planning.cards import find_cards
from triforge.planning.memory import GIB
from triforge.planning.plan import Plan
from triforge.supervisor.engines import interpreter

_USED = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
_STEPS = 3


def _engine() -> str:
    try:
        interpreter("sglang", Settings.from_env())
    except ConfigError as error:
        if GPU:
            raise SkipCase(error.detail) from None
        return "local"
    return "sglang"


@contextlib.contextmanager
def _most_used(gib: dict[int, float]) -> Iterator[None]:
    """Note the most memory of each card while the block runs."""
    ended = Event()

    def look() -> None:
        while not ended.wait(0.5):
            shown = subprocess.run(_USED, capture_output=True, text=True, check=True).stdout
            for line in shown.splitlines():
                card, mib = map(int, line.split(", "))
                gib[card] = max(gib.get(card, 0.0), mib / 1024)

    thread = Thread(target=look, daemon=True)
    if GPU:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if GPU:
            thread.join()


def planned_gib(plan: Plan) -> dict[int, float]:
    """Return what a plan has for each card, in GiB; of parts that take turns the larger one."""
    found: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for engine in plan.engines:
        for card in engine.cards:
            found[card][0] += engine.memory.total / GIB
    for learner in plan.learners:
        for card in learner.cards:
            held = learner.memory.total / GIB
            found[card][1] = max(found[card][1], held) if plan.colocate else found[card][1] + held
    return {card: max(both) if plan.colocate else sum(both) for card, both in found.items()}


def _box(colocate: bool, gpus: int | None, scratch: Path) -> dict[str, Any]:
    """Train policy and judge by `triforge train --engine sglang --gpus N`, N all cards without `gpus`."""
    cards = len(find_cards(""))
    if gpus is None and cards < 2:
        raise SkipCase(f"{cards} card, expected more")
    own: dict[str, Any] = {"model": "tiny", "overrides": {"run": {"groups_per_step": 2}}}
    if gpus != 0:
        folder, games = (
            str(smollm2()),
            {"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]},
        )
        own = {
            "model": folder,
            "reward_model": folder,
            "config": ROOT / "scripts/real_sglang/loop.toml",
        }
        own |= {"generate": games, "options": {"wording": "alfworld"}}
    asked = Training(
        env="household", steps=_STEPS, tasks=8, heldout=2, seed=1, state=scratch, colocate=colocate, engine=_engine(),
        gpus=cards if gpus is None else gpus, **own,
    )  # fmt: skip
    asked = asked.for_beginners()
    tell = partial(print, "      ", flush=True)
    used: dict[int, float] = {}
    document = asked.document(tell)
    held = planned_gib(asked.planned(document, tell)[1]) if gpus != 0 else {}
    with _most_used(used):
        trained = asyncio.run(_conducted(asked, document, tell))
    run, last = trained.run, trained.steps[-1]
    assert run.status == "finished", f"the run is {run.status}: {run.reason}"
    moved = {role: run.versions[role] - 1 for role in parse(document).trained}
    assert {*moved.values()} == {_STEPS}, f"versions have moved by {moved}: {last.metrics}"
    return {
        "engine": asked.engine, "steps": run.step, "seconds_in_all": trained.seconds, **speeds(trained.steps),
        **{f"card{card}_gib": gib for card, gib in used.items()}, **{f"card{card}_plan_gib": gib for card, gib in held.items()},
        **{f"card{card}_of_plan": used[card] / gib for card, gib in held.items() if card in used},
    }  # fmt: skip


async def _conducted(asked: Training, document: dict[str, Any], tell: Any) -> Trained:
    async with deployment(document, asked.state, tell) as found:
        return await conduct(asked, document, found, Console(width=120), tell)


CASES = {"one-card": partial(_box, True, 1), "all-cards": partial(_box, False, None)}
REHEARSAL = {"cpu": partial(_box, False, 0)}
