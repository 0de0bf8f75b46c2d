"""`triforge train` and `triforge.train`: from a model and an environment to a trained model, with all processes behind it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from typer import Option

from triforge.cli.deployment import (
    STATE,
    EngineOption,
    GpusOption,
    OverlayOption,
    SetOption,
    StateOption,
    names,
    start_command,
    state_option,
)
from triforge.cli.figures import MODES, held_out, measures_of
from triforge.cli.model_folders import cache_folder
from triforge.cli.models import initial_policy, trained_policy
from triforge.cli.pools import send_pool
from triforge.cli.started import Tell, clients_of, deployment
from triforge.cli.terminal import console as own_console
from triforge.cli.terminal import say
from triforge.cli.training import Training
from triforge.cli.watch import say_verdict, status_text, watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, with_assignments
from triforge.environments.rows import object_of
from triforge.environments.served import PREFIX, find, serving
from triforge.environments.trainable import config_on
from triforge.errors import InputError, TriforgeError
from triforge.event_loop import run_anywhere
from triforge.types import ENDED, PoolState, Proposal, RunState, RunStep, Verdict

_STOP_S: Final = 120.0  # for a run to finish its step


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

    def __repr__(self) -> str:
        """Return a few lines, for a notebook: the run, its verdict, held-out results, and the model."""
        run, lines = self.run, [self.verdict.text] if self.verdict else []
        for when, result in (("before", self.before), ("after", self.after)):
            found = [(mode, *one) for mode in result for one in measures_of(result[mode]).items()]
            cells = (
                f"{name} {mean} ({interval}), {mode}" for mode, name, (mean, interval) in found
            )
            lines.append(f"{when}: {'; '.join(cells) or 'not measured'}")
        ended = f"{run.id} {run.status} at step {max(run.step, 0)} of {run.steps}"
        return "\n  ".join((f"Trained: {ended}", *lines, f"model: {self.model}"))

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
            learners take turns on one card), `engine` and `gpus` as the options of `triforge train`; `resume`, a run to go on with as it was begun;
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
        resume = arguments.get("resume")  # a run whose pool has the address already
        env = env or ("" if arguments.get("pool") or resume else "prompts")
        with serving(reward, cache_folder() / "rewards" / f"{place}.sock") as address:
            return train(
                model, env, state=state, console=console, data=data, reward="" if resume else address, **arguments
            )  # fmt: skip
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
        base = training.of_deployment(document)
        async with deployment(base, training.state, tell) as addresses:
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
    resume: Annotated[str, Option(help="Go on with this run of the folder, as it was begun.")] = "",
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
