"""`make demo` and `make demo-smollm2`: the closed loop, whole, on this machine, with a report at the end."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from demo import gap
from demo.episodes import Pair, find_pair, judged
from demo.prepare import prepare, settings_of
from demo.report import ALONE, LOOP, PAGES, Baseline, console_table, write_report
from demo.settings import ROOT
from services.dashboard import folder
from services.dashboard.apis import Apis
from triforge.cli.started import clients_of, deployment
from triforge.cli.train import Trained, conduct
from triforge.cli.training import Training
from triforge.cli.watch import say_verdict
from triforge.clients.transport import http_client
from triforge.config import RunConfig, Settings, merge, parse
from triforge.environments.criteria import criteria_of
from triforge.environments.registry import family
from triforge.errors import TriforgeError
from triforge.supervisor.layout import demand_startable
from triforge.types import Criteria


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--smollm2",
        action="store_true",
        help="SmolLM2-135M-Instruct as policy and judge, three steps",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of tasks, warm start and run")
    parser.add_argument(
        "--state",
        type=Path,
        default=ROOT / "var" / "demo",
        help="folder of the deployment and the report",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="one field of the run, e.g. run.steps=5; repeatable",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Prepare the models, start everything, train with outcomes only and with the loop, write the report; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True)
    started = time.monotonic()

    def tell(text: str) -> None:
        console.print(
            f"[{time.monotonic() - started:5.0f} s] {text}", markup=False, highlight=False
        )

    try:
        return _demo(options, console, tell)
    except TriforgeError as error:
        console.print(f"demo: {error.detail}", markup=False, highlight=False, style="red")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything was stopped")
        return 130


def _demo(options: argparse.Namespace, console: Console, tell: Any) -> int:
    demand_startable(
        Settings.from_env(), RunConfig()
    )  # before models are made, which takes minutes
    state: Path = options.state.resolve()
    settings = settings_of(options.seed, smollm2=options.smollm2)
    config = prepare(settings, state, tell, smollm2=options.smollm2, assignments=options.set)
    report = state / "report" / "report.html"
    loop = Training(
        config=config, env="household", generate=settings.played or settings.generate, options=settings.options,
        tasks=settings.train_tasks, heldout=settings.heldout_tasks, seed=settings.seed, state=state,
        export=state / "run.parquet",
    )  # fmt: skip
    first = None if options.smollm2 else replace(loop, overrides=_ALONE, export=state / ALONE_FILE)
    found = asyncio.run(_play(first, loop, console, tell))
    record = found.loop
    folder.write(found.pages, report.parent / PAGES)
    notes = () if not options.smollm2 else (SMOLLM2_NOTE,)
    apart = None
    if found.alone:
        both = gap.evaluated(state / ALONE_FILE), gap.evaluated(state / "run.parquet")
        gap.write(report.parent / "gap.jsonl", settings.seed, *both, gap.facts(record))
        apart = gap.gap(*both)
    baseline = Baseline(record=found.alone, gap=apart) if found.alone and apart else None
    write_report(record, notes, report, found.pair, baseline)
    console.print(console_table(record))
    say_verdict(record.run)
    if apart:
        tell(apart.text(ALONE, LOOP))
    tell(f"report: {report}  (every step: {state / 'run.parquet'})")
    return 0 if record.run.status == "finished" else 1


SMOLLM2_NOTE = (
    "Three steps show that a real pretrained model goes round the loop and that its weights change; they are far too few "
    "to show that it learns."
)
ALONE_FILE = "outcome-only.parquet"
_ALONE = {
    "run": {"name": "outcome-only"},
    "adaptation": {"controller": "none"},
    "algorithm": {
        "overrides": {"estimator": "step_index", "use_votes": False, "train_reward_model": False}
    },
}
_MOST_PAGES = 100  # some groups with all their rollouts


@dataclass(frozen=True, kw_only=True)
class _Played:
    """The runs of the demo: one that learns from outcomes only, the loop, a task of it before and after, and the dashboard's pages of it."""

    alone: Trained | None
    loop: Trained
    pair: Pair | None
    pages: dict[str, bytes]


async def _play(first: Training | None, loop: Training, console: Console, tell: Any) -> _Played:
    document = loop.document(tell)
    alone = None
    async with deployment(document, loop.state, tell) as where:
        if first is not None:
            tell("the same tasks and policy twice: first with outcomes only")
            alone = await conduct(first, merge(document, first.overrides), where, console, tell)
            tell("now the loop: votes, a judge that is trained, tasks that are rewritten")
        record = await conduct(loop, document, where, console, tell)
        pair = await _pair(record, loop.state, where, tell)
        apis = Apis.of(where)
        key = where.key.get_secret_value()
        pages = await folder.pages_of(apis, key, record.run.id, _MOST_PAGES)
        await apis.close()
        tell("runs ended; stopping everything")
    return _Played(alone=alone, loop=record, pair=pair, pages=pages)


async def _pair(record: Trained, state: Path, where: Settings, tell: Any) -> Pair | None:
    """Return a held-out task before and after, with votes if the judge answers."""
    pair = find_pair(state / "run.parquet")
    if pair is None or not any("judge/votes" in s.metrics for s in record.steps):
        return pair
    async with http_client(where.reward_url, api_key=where.key.get_secret_value()) as reward:
        try:
            return await judged(pair, reward, await _criteria(record, pair.task, where))
        except TriforgeError as error:
            tell(f"no votes on the task before and after: {error.detail}")
            return pair


async def _criteria(record: Trained, task_id: str, where: Settings) -> Criteria:
    """Return what the judge of the run was shown of a task."""
    config = parse(record.run.config)
    if "reference" not in config.reward.shows:
        return Criteria()
    async with clients_of(where) as (pools, _):
        found = await pools.task(task_id)
    return criteria_of(family(record.pool.environment), found.task, config.env_adapter.options)


if __name__ == "__main__":
    sys.exit(main())
