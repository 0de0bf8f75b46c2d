"""`triforge.train`: from a model and an environment to a trained model, with the processes that this takes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from triforge.cli import pool_file
from triforge.cli.checks import demand_models, demand_playable, made_pool
from triforge.cli.deployment import DOCUMENT, settings
from triforge.cli.evaluate import held_out
from triforge.cli.model_folders import TINY, TINY_DOCUMENT, model_folder
from triforge.cli.models import trained_policy
from triforge.cli.terminal import say
from triforge.cli.watch import watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, load, merge, parse, read_document, write_document
from triforge.environments.trainable import unplayable
from triforge.errors import ConfigError, InputError, TriforgeError
from triforge.event_loop import run_anywhere
from triforge.supervisor.layout import plan_layout
from triforge.supervisor.supervise import ADDRESSES, Supervisor
from triforge.types import Params, PoolState, Proposal, RunState, RunStep

Tell = Callable[[str], None]
_ANSWER_S = 3.0
_TASKS = 64  # of either kind
_STOP_S = 120.0  # how long a run that is asked to stop may finish what it does


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is asked for; see `train`."""

    model: str = ""
    env: str = ""
    preset: str = ""
    steps: int | None = None
    config: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reward_model: str = ""
    rewriter_model: str = ""
    generate: Params = field(default_factory=dict)
    options: Params = field(default_factory=dict)
    tasks: int | None = None
    heldout: int | None = None
    pool: str = ""
    file: Path | None = None
    seed: int | None = None
    colocate: bool | None = None
    name: str = ""
    resume: str = ""
    state: Path = Path("var")
    export: Path | None = None

    def document(self, tell: Tell) -> dict[str, Any]:
        """The document of the run: the file, over it the arguments, over both `overrides`."""
        if self.resume:
            self._demand_run()
            return read_document(self.state / DOCUMENT)
        base: dict[str, Any] = TINY_DOCUMENT if self.model == TINY else {}
        if not (self.pool or self.file):
            base = merge(base, {"run": {"eval_tasks": self.counts()[1]}})
        base = merge(base, read_document(self.config) if self.config else {})
        run = {"name": self.name or None, "seed": self.seed, "steps": self.steps}
        run |= {"colocate": self.colocate}
        over = {
            "run": {k: v for k, v in run.items() if v is not None},
            "algorithm": {"preset": self.preset} if self.preset else {},
            "env_adapter": {"options": self.options},
        }
        document = merge(merge(base, over), self.overrides)
        models = document.get("models", {})
        if not (self.reward_model or models.get("reward", {}).get("path")):
            document = merge({"algorithm": {"preset": "grpo"}}, document)  # unless another is named
        rewriter = self.rewriter_model or os.environ.get("TRIFORGE_REWRITER_MODEL_URL")
        if not (rewriter or models.get("rewriter", {}).get("path")):
            document = merge({"adaptation": {"controller": "none"}}, document)
        parse(document)  # what is wrong with it is said before a model is fetched or made
        self._demand_pool(document)
        return merge(document, {"models": self._models(tell)})

    def counts(self) -> tuple[int, int]:
        """Tasks to generate for training and for evaluation: as asked, or 64 each; of a shorter file a fifth is held out."""
        data = str(self.generate.get("data", ""))
        if self.tasks is None and self.heldout is None and data.endswith(".jsonl"):
            with contextlib.suppress(OSError), Path(data).open("rb") as file:
                rows = sum(bool(line.strip()) for line in file)
                if 1 < rows < 2 * _TASKS:
                    return rows - max(1, rows // 5), max(1, rows // 5)
        return (
            _TASKS if self.tasks is None else self.tasks,
            _TASKS if self.heldout is None else self.heldout,
        )

    def _demand_run(self) -> None:
        if deployed(self.state) is None:
            from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

            kept.demand_run(self.state, self.resume)

    def _demand_pool(self, document: Mapping[str, Any]) -> None:
        """Refuse a pool that cannot be made or not be trained on as the document says."""
        found = deployed(self.state)
        if found is not None:
            if self.pool:
                run_anywhere(_check_pool(found, self.pool, parse(document).env_adapter.options))
            elif (self.state / ADDRESSES).is_file():  # of this machine, with the same families
                made_pool(*self.request(document), self.env, trial=False)  # its step says it soon
            return
        if not self.pool:
            demand_playable(made_pool(*self.request(document), self.env, trial=True), document)
            return
        from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

        pool = kept.find_pool(self.state, self.pool)
        if pool is not None:
            demand_playable(pool, document)

    def request(self, document: Mapping[str, Any]) -> tuple[str, dict[str, Any] | Path]:
        """The name of the pool that is made, and what is asked for; or a file of its tasks."""
        name = f"{re.sub('[^a-z0-9]+', '-', self.env.lower())}-{int(time.time())}"
        if self.file:
            return name, pool_file.read(self.file)
        count, heldout = self.counts()
        generate = {"count": count, "heldout": heldout, "options": self.generate}
        seed = parse(document).run.seed
        return name, {"options": self.options, "generate": {**generate, "seed": seed}}

    def _models(self, tell: Tell) -> dict[str, Any]:
        # the policy last: a tiny one takes a minute, and what is wrong with the others is said before
        named = {"reward": self.reward_model, "rewriter": self.rewriter_model, "policy": self.model}
        folder = partial(
            model_folder, tell=tell, env=self.env, generate=self.generate, options=self.options
        )
        return {role: {"path": str(folder(role, given))} for role, given in named.items() if given}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run left behind.

    Attributes:
        before: success on held-out tasks before training with its 95 % interval, by mode (`sampled`, `greedy`).
        after: the same at the end.
        model: folder of the newest trained policy: a complete Hugging Face model, or with LoRA an adapter; None if nothing
            was trained.
    """

    run: RunState
    steps: list[RunStep]
    before: dict[str, Any]
    after: dict[str, Any]
    model: Path | None
    pool: PoolState
    proposals: list[Proposal]
    seconds: float


def train(
    model: str | Path = "",
    env: str = "",
    *,
    state: str | Path = "var",
    console: Console | None = None,
    data: str | Path = "",
    reward: str = "",
    **asked: Any,
) -> Trained:
    """Train a model on an environment, and stop whatever was started for it.

    A deployment that runs in `state`, or that `TRIFORGE_TRAINER_URL` names, is used; otherwise one is started on this machine.

    Args:
        model: a model folder, a model's id on the Hugging Face hub, or `tiny`.
        env: the environment family.
        state: folder of the deployment: database, weights, logs.
        console: where progress is shown.
        data: option `data` of the family's generator, a file.
        reward: option `reward` of the family, `MODULE:NAME` of a function.
        asked: the other fields of `Training`: `preset`, `steps`, `config` (a TOML document), `overrides` (one as a dict),
            `reward_model`, `rewriter_model`, `generate` and `options` of the family, `tasks` and `heldout`, or an existing
            `pool` or a `file` of tasks; `seed`, `name`; `colocate` (engines and learners take turns on one card); `resume`, a run to go on with; `export`, a Parquet file of all steps.

    Raises:
        TriforgeError: something asked for is impossible, or the run could not be made. A run that fails is no error: see `run`.
        TypeError: an argument is unknown.
    """
    known = {one.name for one in fields(Training)} | {"console", "data", "reward"}
    if unknown := sorted(asked.keys() - known):
        raise TypeError(
            f"triforge.train: unknown argument {', '.join(unknown)}; known are {', '.join(sorted(known))}; any field of the "
            "document goes into `overrides`"
        )
    for name in ("config", "file", "export"):
        asked |= {name: Path(asked[name])} if asked.get(name) else {}
    if data:
        asked["generate"] = {**asked.get("generate", {}), "data": str(Path(data).resolve())}
    if reward:
        asked["options"] = {**asked.get("options", {}), "reward": reward}
    wanted = Training(model=str(model), env=env, state=Path(state), **asked)
    console = console or Console()
    tell = partial(say, to=console)
    document = wanted.document(tell)  # here, where Ctrl-C ends it
    return run_anywhere(_train(wanted, document, console, tell))


async def _train(
    wanted: Training, document: Mapping[str, Any], console: Console, tell: Tell
) -> Trained:
    async with deployment(document, wanted.state, tell) as found:
        return await conduct(wanted, document, found, console, tell)


async def conduct(
    wanted: Training, document: Mapping[str, Any], found: Settings, console: Console, tell: Tell
) -> Trained:
    """Make pool and run on a deployment that serves, and show the run until it has ended."""
    started = time.monotonic()
    async with clients_of(found) as (pools, trainer):
        run = await _begin(wanted, document, pools, trainer)
        tell(f"run {run.id} on pool {run.pool_id}: {run.steps} steps of {run.algorithm}")
        await follow(wanted.state, run, trainer, console, tell)
        if wanted.export and (await trainer.run(run.id)).step > 0:
            await trainer.export(run.id, wanted.export)
    return await left_by(run.id, found, time.monotonic() - started)


@contextlib.asynccontextmanager
async def clients_of(found: Settings) -> AsyncIterator[tuple[EnvAdapterClient, TrainerClient]]:
    """Clients of a deployment's env_adapter and trainer."""
    key = found.key.get_secret_value()
    async with (
        EnvAdapterClient(found.env_adapter_url, api_key=key) as pools,
        TrainerClient(found.trainer_url, api_key=key) as trainer,
    ):
        yield pools, trainer


@contextlib.asynccontextmanager
async def deployment(
    document: Mapping[str, Any], state: Path, tell: Tell
) -> AsyncIterator[Settings]:
    """The deployment that runs in `state` or that the environment names; without one, all that the document asks for."""
    found = deployed(state)
    if found is not None:
        tell(f"using the deployment at {found.trainer_url}")
        yield found
        return
    write_document(state / DOCUMENT, document)
    config = load(state / DOCUMENT)
    layout = plan_layout(
        config, Settings.from_env(), config_path=state / DOCUMENT, state=state, auto_ports=True
    )
    demand_models(config, layout.settings)
    tell(f"starting {', '.join(spec.name for spec in layout.specs)}")
    supervisor = Supervisor(layout, state, report=tell)
    try:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        try:
            yield settings(state)
        finally:
            watching.cancel()
    finally:
        await supervisor.stop()


def deployed(state: Path) -> Settings | None:
    """The addresses of a deployment that answers: the one of the folder, or the one that the environment names."""
    found = settings(state)
    if not ((state / ADDRESSES).is_file() or "TRIFORGE_TRAINER_URL" in os.environ):
        return None
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
        try:
            ready = client.get(f"{found.trainer_url}/readyz").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return None
    return found if ready else None


async def _check_pool(found: Settings, pool: str, options: Params) -> None:
    async with clients_of(found) as (pools, _):
        state = await pools.pool(pool)
        try:
            await pools.check_pool(state.id, options)
        except (InputError, ConfigError) as error:
            raise unplayable(state, error) from None


async def _begin(
    wanted: Training, document: Mapping[str, Any], pools: EnvAdapterClient, trainer: TrainerClient
) -> RunState:
    """The run, on a pool that is made for it unless one is named."""
    if wanted.resume:
        run = await trainer.run(wanted.resume)
        return await trainer.resume(run.id) if run.status in ("stopped", "failed") else run
    pool = wanted.pool
    if not pool:
        name, body = wanted.request(document)
        pool = (await pool_file.send(pools, name, body, environment=wanted.env)).id
    return await trainer.submit(pool, name=wanted.name, config=dict(document))


async def follow(
    state: Path, run: RunState, trainer: TrainerClient, console: Console, tell: Tell
) -> None:
    """Show the run until it has ended; stop it first when we are told to stop."""
    try:
        await watch(console, trainer, run.id)
    except asyncio.CancelledError:
        tell(f"stopping run {run.id}; Ctrl-C again does not wait for it")
        with contextlib.suppress(TriforgeError, TimeoutError):
            await trainer.stop(run.id)
            async with asyncio.timeout(_STOP_S):
                async for _ in trainer.events(run.id):  # until it has ended
                    pass
            run = await trainer.run(run.id)
        tell(
            f"run {run.id} {run.status} at step {max(run.step, 0)} of {run.steps}; go on with it: "
            f"triforge train --resume {run.id} --state {state}"
        )
        raise


async def left_by(run_id: str, found: Settings, seconds: float) -> Trained:
    """What a run has left behind."""
    async with clients_of(found) as (pools, trainer):
        run, steps = await trainer.run(run_id), await trainer.steps(run_id)
        newest = trained_policy(run, await trainer.weights(run_id))
        return Trained(
            run=run,
            steps=steps,
            before=held_out(steps[:1]),
            after=held_out(steps),
            model=Path(newest.uri) if newest else None,
            pool=await pools.pool(run.pool_id),
            proposals=await pools.proposals(run.pool_id),
            seconds=seconds,
        )
