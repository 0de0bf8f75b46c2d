"""`triforge train` and `triforge.train`: from a model and an environment to a trained model, with all processes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
from rich.console import Console
from rich.table import Table
from typer import Option

from triforge.cli.checks import check_new_pool, demand_models, demand_playable, demand_shown
from triforge.cli.deployment import (
    DOCUMENT,
    STATE,
    EngineOption,
    GpusOption,
    OverlayOption,
    SetOption,
    StateOption,
    names,
    settings,
    start_command,
    state_option,
)
from triforge.cli.figures import MODES, TASKS, held_out, measures_of
from triforge.cli.model_folders import (
    TINY,
    TINY_DOCUMENT,
    cache_folder,
    learning_rate,
    model_folder,
    shapes_of,
)
from triforge.cli.models import initial_policy, trained_policy
from triforge.cli.pools import read_pool, send_pool
from triforge.cli.terminal import console as own_console
from triforge.cli.terminal import say
from triforge.cli.watch import say_verdict, status_text, watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import (
    Settings,
    load,
    merge,
    parse,
    read_document,
    with_assignments,
    write_document,
)
from triforge.environments.kit import Beginner
from triforge.environments.registry import family
from triforge.environments.rows import object_of
from triforge.environments.served import PREFIX, find, serving
from triforge.environments.trainable import config_on, unplayable
from triforge.errors import ConfigError, InputError, TriforgeError
from triforge.event_loop import run_anywhere
from triforge.planning.cards import find_cards
from triforge.planning.plan import Plan, fitted, served
from triforge.supervisor.layout import demand_startable, plan_layout
from triforge.supervisor.supervise import ADDRESSES, Supervisor
from triforge.types import (
    ENDED,
    MAX_TASKS,
    Params,
    PoolState,
    Proposal,
    RunState,
    RunStep,
    Task,
    Verdict,
)

Tell = Callable[[str], None]
_ANSWER_S: Final = 3.0
_LOOK_S: Final = 3.0  # between two looks at runs of other commands
_STOP_S: Final = 120.0  # for a run to finish its step


@dataclass(frozen=True, kw_only=True)
class Training:
    """The arguments of `train`."""

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
    engine: str = ""
    gpus: int | str = ""
    name: str = ""
    again: bool = False
    resume: str = ""
    state: Path = Path("var")
    export: Path | None = None

    def document(self, tell: Tell) -> dict[str, Any]:
        """Return the document of the run: the file, over it the arguments, over both `overrides`."""
        if self.resume:
            self._demand_run()
            return read_document(self.state / DOCUMENT)
        document = self.without_models()
        parse(document)  # before a model is fetched or made
        shown = self._check_pool(document, tell)
        document = self._with_room(document, tell)
        document = merge(document, {"models": self._models(tell)})
        document = self._with_rates(document, tell)
        policy = document["models"].get("policy", {}).get("path", "")
        if shown and policy:
            demand_shown(Path(policy), *shown, parse(document).env_adapter.options)
        return document

    def without_models(self) -> dict[str, Any]:
        """Return the document without the folders of the models that are arguments."""
        base: dict[str, Any] = TINY_DOCUMENT if self.model == TINY else {}
        if not (self.pool or self.file):
            base = merge(base, {"run": {"eval_tasks": self.counts()[1]}})
        base = merge(base, read_document(self.config) if self.config else {})
        run = {"name": self.name or None, "seed": self.seed, "steps": self.steps}
        run |= {"colocate": self.colocate}
        machine = {"engine": self.engine, "gpus": str(self.gpus)}
        arguments = {
            "run": {k: v for k, v in run.items() if v is not None},
            "machine": {k: v for k, v in machine.items() if v},
            "algorithm": {"preset": self.preset} if self.preset else {},
            "env_adapter": {"options": self.options},
        }
        document = merge(merge(base, arguments), self.overrides)
        models = document.get("models", {})
        if not (self.reward_model or models.get("reward", {}).get("path")):
            document = merge({"algorithm": {"preset": "grpo"}}, document)
        rewriter = self.rewriter_model or os.environ.get("TRIFORGE_REWRITER_MODEL_URL")
        if not (rewriter or models.get("rewriter", {}).get("path")):
            document = merge({"adaptation": {"controller": "none"}}, document)
        return document

    def counts(self) -> tuple[int, int]:
        """Return how many tasks are generated for training and evaluation; a file is taken whole, of which a fifth is held out, 128 rows at most."""
        data = str(self.generate.get("data", ""))
        if self.tasks is None and self.heldout is None and data.endswith(".jsonl"):
            with contextlib.suppress(OSError), Path(data).open("rb") as file:
                rows = sum(bool(line.strip()) for line in file)
                if rows > 1:
                    heldout = min(TASKS, max(1, rows // 5))
                    return min(rows - heldout, MAX_TASKS - heldout), heldout
        counts = (self.tasks, self.heldout)
        train, heldout = (TASKS if count is None else count for count in counts)
        return train, heldout

    def request(self, document: Mapping[str, Any]) -> tuple[str, dict[str, Any] | Path]:
        """Return the name of the new pool and its request, or a file of its tasks."""
        name = f"{re.sub('[^a-z0-9]+', '-', self.env.lower())}-{int(time.time())}"
        if self.file:
            return name, read_pool(self.file)
        count, heldout = self.counts()
        seed = parse(document).run.seed
        generate = {"count": count, "heldout": heldout, "options": self.generate, "seed": seed}
        if self.tasks is None and self.heldout is None:
            generate["at_most"] = True
        return name, {"options": self.options, "generate": generate}

    def _demand_run(self) -> None:
        if deployed(self.state) is None:
            from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

            kept.demand_run(self.state, self.resume)

    def _check_pool(self, document: Mapping[str, Any], tell: Tell) -> tuple[PoolState, Task] | None:
        """Return the pool and a task of it if nothing is started yet; raise for one that cannot be made or trained on as the document says."""
        addresses, shown = deployed(self.state), None
        if addresses is None:
            demand_startable(Settings.from_env(), parse(document))
        if addresses is not None and self.pool:
            options = parse(document).env_adapter.options
            run_anywhere(_check_served_pool(addresses, self.pool, options))
        elif addresses is not None and (self.state / ADDRESSES).is_file():
            check_new_pool(*self.request(document), self.env, play=False, tell=tell)
        elif addresses is None and self.pool:
            from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

            shown = kept.find_pool(self.state, self.pool)
        elif addresses is None:
            shown = check_new_pool(*self.request(document), self.env, play=True, tell=tell)
        if shown is not None:
            demand_playable(shown[0], document)
        return shown

    def planned(self, document: dict[str, Any], tell: Tell) -> tuple[dict[str, Any], Plan]:
        """Return the document, with what it needs to fit the cards, and the plan; of models only `config.json` is fetched.

        Raises:
            ConfigError: it does not fit, or a model has no `config.json`.
        """
        paths = {role: {"path": name} for role, name in self._named().items() if name}
        document = merge(document, {"models": paths})
        config = parse(document)
        cards = find_cards(config.machine.gpus)
        return fitted(document, shapes_of(config, tell), cards, served(config))

    def _with_room(self, document: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Return the document as `planned`, if a start here divides cards; a tiny model fits any."""
        divides = parse(document).machine.divides and TINY not in self._named().values()
        if not divides or deployed(self.state) is not None:
            return document
        document, plan = self.planned(document, tell)
        for note in plan.notes:
            tell(f"plan: {note}")
        return document

    def for_beginners(self) -> Training:
        """Return the training of a tiny model with the family's small tasks, where none are named."""
        if self.model != TINY or self.pool or self.file or not self.env:
            return self
        beginner: Beginner | None = getattr(family(self.env), "beginner", None)
        if beginner is None:
            return self
        return replace(
            self,
            generate=self.generate or beginner.generate,
            options=self.options or beginner.options,
        )

    def _with_rates(self, document: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Return the document with learning rates by the size of the named models, where it has none."""
        for role, name in (("policy", self.model), ("reward", self.reward_model)):
            section = document.get("trainer", {}).get(role, {})
            if not name or "learning_rate" in section:
                continue
            folder = Path(document["models"][role]["path"])
            rate = learning_rate(folder, lora=bool(section.get("lora_rank")))
            tell(
                f"learning rate of the {role} by its size: {rate:g} (trainer.{role}.learning_rate)"
            )
            document = merge(document, {"trainer": {role: {"learning_rate": rate}}})
        return document

    def _models(self, tell: Tell) -> dict[str, Any]:
        folder = partial(
            model_folder, tell=tell, env=self.env, generate=self.generate, options=self.options
        )
        return {
            role: {"path": str(folder(role, name))} for role, name in self._named().items() if name
        }

    def _named(self) -> dict[str, str]:
        # the policy is last, because a tiny one takes a minute to make
        return {"reward": self.reward_model, "rewriter": self.rewriter_model, "policy": self.model}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a run.

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

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the run: its sentence, word, warnings and what to try next; None before a step."""
        return self.run.verdict


def train(
    model: str | Path = "",
    env: str = "",
    *,
    state: str | Path = "var",
    console: Console | None = None,
    data: str | Path | Iterable[Mapping[str, Any]] = "",
    reward: str | Callable[..., Any] = "",
    **arguments: Any,
) -> Trained:
    """Train a model on an environment, and stop every process that was started for it.

    A deployment that runs in `state`, or that `TRIFORGE_TRAINER_URL` names, is used; otherwise one is started on this machine.

    Args:
        model: a model folder, a model's id on the Hugging Face hub, or `tiny`.
        env: the environment family.
        state: folder of the deployment: database, weights, logs.
        console: where progress is shown; with one given the verdict is returned only.
        data: option `data` of the family's generator, a file, or its rows.
        reward: option `reward` of the family, `MODULE:NAME` of a function, or the function itself, also one of a notebook: it
            then runs in this process, which the workers of a deployment on this machine call.
        arguments: the other fields of `Training`: `preset`, `steps`, `config` (a TOML document), `overrides` (one as a dict),
            `reward_model`, `rewriter_model`, `generate` and `options` of the family, `tasks` and `heldout`, or an existing
            `pool` or a `file` of tasks; `seed`, `name`, `again` (go on with the newest run of that name); `colocate` (engines and
            learners take turns on one card), `engine` and `gpus` as the options of `triforge train`; `resume`, a run to go on with;
            `export`, a Parquet file of all steps.

    Raises:
        TriforgeError: an argument is impossible, or the run could not be made. A failed run is no error: see `run`.
        TypeError: an argument is unknown.
    """
    known = {one.name for one in fields(Training)} | {"console", "data", "reward"}
    if unknown := sorted(arguments.keys() - known):
        raise TypeError(
            f"triforge.train: unknown argument {', '.join(unknown)}; known are {', '.join(sorted(known))}; any field of the "
            "document goes into `overrides`"
        )
    if callable(reward):
        place = hashlib.sha256(str(Path(state).resolve()).encode()).hexdigest()[:12]
        env = env or ("" if arguments.get("pool") else "prompts")
        with serving(reward, cache_folder() / "rewards" / f"{place}.sock") as address:
            return train(
                model, env, state=state, console=console, data=data, reward=address, **arguments
            )
    for name in ("config", "file", "export"):
        arguments |= {name: Path(arguments[name])} if arguments.get(name) else {}
    if not isinstance(data, str | Path):
        data = _written(data, Path(state) / "data")
    if data:
        path = str(Path(data).resolve())
        arguments["generate"] = {**arguments.get("generate", {}), "data": path}
    if reward:
        arguments["options"] = {**arguments.get("options", {}), "reward": reward}
    training = Training(model=str(model), env=env, state=Path(state), **arguments).for_beginners()
    shown = console or Console()
    tell = partial(say, to=shown)
    document = training.document(tell)  # outside of an event loop, where Ctrl-C ends it

    async def work() -> Trained:
        async with deployment(document, training.state, tell) as addresses:
            return await conduct(training, document, addresses, shown, tell)

    trained = run_anywhere(work())
    if console is None:
        say_verdict(trained.run, to=shown)
    return trained


def _written(rows: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows to a JSONL file, which is named by its contents."""
    try:
        lines = "".join(f"{json.dumps(dict(row))}\n" for row in rows).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"data: {error}; expected a file, or rows of JSON values") from error
    file = folder / f"{hashlib.sha256(lines).hexdigest()[:12]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lines)
    return file


async def conduct(
    training: Training,
    document: Mapping[str, Any],
    addresses: Settings,
    console: Console,
    tell: Tell,
) -> Trained:
    """Make pool and run on a deployment, and show the run until it has ended."""
    started = time.monotonic()
    async with clients_of(addresses) as (pools, trainer):
        run = await _begin(training, document, pools, trainer)
        tell(f"run {run.id} on pool {run.pool_id}: {run.steps} steps of {run.algorithm}")
        if names(addresses, "dashboard"):
            tell(f"dashboard: {addresses.dashboard_url}/runs/{run.id}")
        alone = config_on(await pools.pool(run.pool_id), {}, document).model_dump(mode="json")
        if (others := _set_elsewhere(run.config, alone)) and not training.resume:
            tell(f"set by the document of the deployment: {', '.join(others)}; --set replaces it")
        await follow(training.state, run, trainer, console, tell)
        if training.export and (await trainer.run(run.id)).step > 0:
            await trainer.export(run.id, training.export)
    return await result_of(run.id, addresses, time.monotonic() - started)


@contextlib.asynccontextmanager
async def clients_of(addresses: Settings) -> AsyncIterator[tuple[EnvAdapterClient, TrainerClient]]:
    """Open clients of a deployment's env_adapter and trainer."""
    key = addresses.key.get_secret_value()
    async with (
        EnvAdapterClient(addresses.env_adapter_url, api_key=key) as pools,
        TrainerClient(addresses.trainer_url, api_key=key) as trainer,
    ):
        yield pools, trainer


@contextlib.asynccontextmanager
async def deployment(
    document: Mapping[str, Any], state: Path, tell: Tell
) -> AsyncIterator[Settings]:
    """Use the deployment that runs in `state` or that the environment names; without one start what the document asks for."""
    addresses = deployed(state)
    if addresses is not None:
        tell(f"using the deployment at {addresses.trainer_url}")
        yield addresses
        return
    path = state / DOCUMENT
    write_document(path, document)
    config = load(path)
    layout = plan_layout(
        config, Settings.from_env(), config_path=path, state=state, auto_ports=True
    )
    demand_models(config, layout.settings)
    for line in layout.placement.lines():
        tell(f"plan: {line}")
    tell(f"starting {', '.join(spec.name for spec in layout.specs)}")
    supervisor = Supervisor(layout, state, report=tell)
    try:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.watch())
        try:
            yield settings(state)
            async with clients_of(settings(state)) as (_, trainer):
                await others_ended(trainer, tell)
        finally:
            watching.cancel()
    finally:
        await supervisor.stop()


async def others_ended(trainer: TrainerClient, tell: Tell, pause_s: float = _LOOK_S) -> None:
    """Wait until the runs of other commands, which use this deployment, have ended and been read; Ctrl-C waits no longer."""
    with contextlib.suppress(asyncio.CancelledError, TriforgeError):
        named = ""
        while others := ", ".join(r.id for r in await trainer.runs() if r.status not in ENDED):
            if others != named:
                tell(
                    f"waiting for {others} of another command, which uses this deployment; Ctrl-C stops it"
                )
            named = others
            await asyncio.sleep(pause_s)
        if named:
            await asyncio.sleep(pause_s)


def deployed(state: Path) -> Settings | None:
    """Return the addresses of a deployment that answers: that of the folder, or the one that the environment names."""
    addresses = settings(state)
    if not ((state / ADDRESSES).is_file() or "TRIFORGE_TRAINER_URL" in os.environ):
        return None
    try:
        reply = httpx.get(f"{addresses.trainer_url}/readyz", timeout=_ANSWER_S, trust_env=False)
    except httpx.HTTPError:
        return None
    return addresses if reply.is_success else None


async def _check_served_pool(addresses: Settings, pool: str, options: Params) -> None:
    async with clients_of(addresses) as (pools, _):
        state = await pools.pool(pool)
        try:
            await pools.check_pool(state.id, options)
        except (InputError, ConfigError) as error:
            raise unplayable(state, error) from None


def _set_elsewhere(config: Mapping[str, Any], own: Mapping[str, Any], name: str = "") -> list[str]:
    """Return the options of a run's config that differ from its `own` document, as `--set` takes them."""
    lines = []
    for key, value in config.items():
        place = f"{name}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            lines += _set_elsewhere(value, own.get(key) or {}, place)
        elif value != own.get(key):
            lines.append(f"{place}={json.dumps(value)}")
    return lines


async def _begin(
    training: Training, document: Mapping[str, Any], pools: EnvAdapterClient, trainer: TrainerClient
) -> RunState:
    """Resume the run, or submit one on the named pool or on a new one."""
    runs = await trainer.runs() if training.again else []
    same = next((run.id for run in runs if run.name == training.name), training.resume)
    if same:
        run = await trainer.run(same)
        reward = (await pools.pool(run.pool_id)).options.get("reward")
        if isinstance(reward, str) and reward.startswith(PREFIX):
            find(reward)  # raises where the process of the function is gone
        return await trainer.resume(run.id) if run.status in ("stopped", "failed") else run
    pool = training.pool
    if not pool:
        name, body = training.request(document)
        pool = (await send_pool(pools, name, body, environment=training.env)).id
    return await trainer.submit(pool, name=training.name, config=dict(document))


async def follow(
    state: Path, run: RunState, trainer: TrainerClient, console: Console, tell: Tell
) -> None:
    """Show the run until it has ended; a cancellation stops the run first."""
    try:
        await watch(console, trainer, run.id)
    except asyncio.CancelledError:
        resume = f"; to go on with it: triforge train --resume {run.id} --state {state}"
        try:
            run = await _stopped(run.id, trainer, tell)
        except (TriforgeError, TimeoutError) as error:
            tell(f"run {run.id}: whether it stopped is not known ({error}){resume}")
        else:
            resume = "" if run.status == "finished" else resume
            tell(f"run {run.id} {run.status} at step {max(run.step, 0)} of {run.steps}{resume}")
        raise


async def _stopped(run_id: str, trainer: TrainerClient, tell: Tell) -> RunState:
    """Stop a run that has not ended; return its last state."""
    run = await trainer.run(run_id)
    if run.status not in ENDED:
        tell(f"stopping run {run_id}; Ctrl-C again does not wait for it")
        await trainer.stop(run_id)
        async with asyncio.timeout(_STOP_S):
            async for _ in trainer.events(run_id):  # until it has ended
                pass
        run = await trainer.run(run_id)
    return run


async def result_of(run_id: str, addresses: Settings, seconds: float) -> Trained:
    """Read the result of a run."""
    async with clients_of(addresses) as (pools, trainer):
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


def train_command(
    model: Annotated[str, Option(help="Model folder, id on the Hugging Face hub, or tiny.")] = "",
    env: Annotated[str, Option(help="Environment family, such as household.")] = "",
    preset: Annotated[str, Option(help="Algorithm; grpo if there is no reward model.")] = "",
    steps: Annotated[int | None, Option(min=1, help="Training steps.")] = None,
    reward_model: Annotated[str, Option(help="For presets with votes; as --model.")] = "",
    rewriter_model: Annotated[str, Option(help="To have tasks rewritten; as --model.")] = "",
    generate: Annotated[str, Option(help="Options of the task generator, JSON.")] = "{}",
    options: Annotated[str, Option(help="Options of the episodes, JSON.")] = "{}",
    data: Annotated[Path | None, Option(help="Generator's option `data`: a file.")] = None,
    reward: Annotated[str, Option(help="Option `reward`: MODULE:NAME of a function.")] = "",
    tasks: Annotated[
        int | None,
        Option(min=1, help="Training tasks to generate; else 128, or the rows of the data."),
    ] = None,
    heldout: Annotated[
        int | None,
        Option(min=0, help="Held-out tasks to generate; else 128, or a fifth of the data."),
    ] = None,
    pool: Annotated[str, Option(help="A pool that exists, instead of a new one.")] = "",
    file: Annotated[Path | None, Option("--file", "-f", help="Tasks, JSON or JSONL.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Seed of tasks and run.")] = None,
    colocate: Annotated[bool | None, Option(help="Engines and learners share a card.")] = None,
    engine: EngineOption = "",
    gpus: GpusOption = "",
    config: OverlayOption = None,
    set_: SetOption = None,
    resume: Annotated[str, Option(help="Go on with this run of the folder.")] = "",
    state: StateOption = STATE,
) -> None:
    """Train a model on an environment: start what is needed, show progress, report success and the model's folder.

    A deployment that runs in the state folder is used. Ctrl-C stops the run and every process that was started.
    """
    if not resume and not (model or config):
        raise typer.BadParameter("given nothing, expected a model", param_hint="--model")
    if not resume and not (env or pool):
        raise typer.BadParameter("given nothing, expected a family", param_hint="--env")
    trained = train(
        model, env, preset=preset, steps=steps, reward_model=reward_model, rewriter_model=rewriter_model,
        generate=object_of(generate, "--generate"), options=object_of(options, "--options"), data=data or "", reward=reward,
        tasks=tasks, heldout=heldout, pool=pool, file=file, seed=seed, colocate=colocate, engine=engine,
        gpus=gpus, config=config,
        overrides=with_assignments({}, set_ or ()), resume=resume, state=state, console=own_console,
    )  # fmt: skip
    show(trained, () if resume else ("triforge", *sys.argv[1:]))
    if command := start_command(state):
        say(f"to look at it: {command}")
        say("  then open the address of the dashboard that it prints, or type in another terminal")
    say(f"  triforge run show {trained.run.id} --step 1{state_option(state)}")
    if trained.run.status in ("failed", "stopped"):
        raise typer.Exit(1)


def show(trained: Trained, command: Sequence[str] = ()) -> None:
    """Print the success on held-out tasks before and after, the verdict, and the folder of the model; `command` began the run."""
    run, table = trained.run, Table("held out", "before", "95 %", "after", "95 %", "episodes")
    for mode in MODES:
        before, after = (
            measures_of(result.get(mode, {})) for result in (trained.before, trained.after)
        )
        for name in before | after:
            cells = [measures.get(name, ("-", "-")) for measures in (before, after)]
            episodes = str(trained.after.get(mode, {}).get("episodes", "-"))
            table.add_row(f"{name}, {mode}", *cells[0], *cells[1], episodes)
    if table.row_count:
        own_console.print(table)
    say(
        f"{run.id} at step {max(run.step, 0)} of {run.steps}: {status_text(run.status, run.reason)}"
    )
    say_verdict(run, command)
    if trained.model is None:
        say(f"no update was made; the model is unchanged: {initial_policy(run) or 'as served'}")
        return
    say(
        f"trained model: {trained.model} (version {run.policy_version}; the run began with {trained.steps[0].policy_version})"
    )
    if not trained.model.is_dir():
        say("  on the trainer's machine")
    elif (trained.model / "adapter_config.json").is_file():
        say(
            "  a PEFT adapter; `python -m services.trainer merge-lora --adapter FOLDER --out FOLDER` makes a whole model of it"
        )
    else:
        say(
            "  a complete Hugging Face folder: weights, config, tokenizer and chat template; transformers' from_pretrained opens it"
        )
