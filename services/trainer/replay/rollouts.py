"""`triforge replay --replay-rollouts`: the whole loop of a recorded run once more, without models.

Environments, workers, policy services and the orchestrator are a deployment's own processes. Engines answer what was recorded
for a prompt and its seed, learners announce the next version and train nothing. What the services write is compared with the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import uvicorn

from services.trainer.replay.credit import Finding, compare
from services.trainer.replay.recording import Recording, StepRecord
from services.trainer.runs.store import RunStore
from triforge.broker import Broker, RedisBroker, batches_stream
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, merge, parse, write_document
from triforge.errors import InputError, TriforgeError
from triforge.rollout.seeds import derive_seed, nth_seed, sample_seed
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.supervisor.layout import Layout, free_port, plan_layout
from triforge.supervisor.supervise import Supervisor
from triforge.types import ENDED, TrainedRole, WeightsReady

ROLES: Final[tuple[TrainedRole, ...]] = ("policy", "reward")
_LEFT_OUT: Final = ("learner-policy", "learner-reward", "reward", "dashboard")
_NEW: Final = ("run_id", "task_id", "task_slot")  # names of another run and another pool
_LOOK_S: Final = 0.2
Answer = tuple[str, list[int], list[float]]  # text, ids, log-probabilities
Key = tuple[tuple[int, ...], int]  # ids of a prompt, seed of a sample
Answers = dict[Key, Answer]


def answers_of(recording: Recording) -> dict[TrainedRole, Answers]:
    """What policy and reward model have answered in the training steps of a run."""
    found: dict[TrainedRole, Answers] = {role: {} for role in ROLES}
    for step in recording.steps:
        record = recording.read(step.step)
        for trajectory, rows in groupby(record.records, itemgetter("trajectory_id")):
            group, _, index = trajectory.rpartition("-")
            seed, held = _seed_of(group, record.config["run"]["seed"]), dict[int, list[int]]()
            for row in rows:
                turn, part = row["step_index"], row["segment"]
                prompt = [*held.get(part, ()), *row["context_ids"]]
                held[part] = [*prompt, *row["response_ids"]]
                answer = row["response"], row["response_ids"], row["response_logprobs"]
                found["policy"][tuple(prompt), derive_seed(seed, int(index), turn)] = answer
                judge = derive_seed(derive_seed(seed, "judge", int(index)), turn)
                for number, vote in enumerate(row["votes"]):
                    key = tuple(row["judge_prompt_ids"]), sample_seed(judge, number)
                    found["reward"][key] = vote["text"], vote["ids"], vote["logprobs"]
    return found


def _seed_of(group: str, seed: int) -> int:
    """That of a group of training, as `TaskSource` gives it."""
    _, number, mode, index = group.rsplit("-", 3)
    if mode == "train":
        return nth_seed(seed, int(number), int(index))
    return derive_seed(seed, mode, int(number), int(index))


class RecordedEngine:
    """The part of SGLang's HTTP API that a policy service asks for, as an ASGI callable. New weights are a number to it."""

    def __init__(self, answers: Answers) -> None:
        self._answers, self._version, self.missed = answers, "0", 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        status, found = self._reply(scope["path"], json.loads(raw or b"{}"))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(found).encode()})

    def _reply(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if path == "/generate":
            asked = zip(body["input_ids"], body["sampling_params"], strict=True)
            found = [self._sample(ids, how) for ids, how in asked]
            missed = found.count(None)
            self.missed += missed
            error = {"error": {"message": f"{missed} of {len(found)} prompts are not on record"}}
            return (400, error) if missed else (200, found)
        self._version = body.get("weight_version") or self._version
        about = {"success": True, "message": "", "model_path": ""}
        return 200, about | {"weight_version": self._version}

    def _sample(self, prompt: list[int], how: Mapping[str, Any]) -> dict[str, Any] | None:
        known = self._answers.get((tuple(prompt), how.get("sampling_seed", -1)))
        if known is None:
            return None
        text, ids, logprobs = known
        stopped = bool(ids) and ids[-1] in how.get("stop_token_ids", ())
        span = {"version": self._version, "start": 0, "end": len(ids)}
        meta = {
            "id": "", "finish_reason": {"type": "stop" if stopped else "length"}, "prompt_tokens": len(prompt),
            "weight_version": self._version, "weight_versions": [span],
            "output_token_logprobs": [[p, token, None] for p, token in zip(logprobs, ids, strict=True)],
        }  # fmt: skip
        return {"text": text, "output_ids": ids, "meta_info": meta}


@contextlib.asynccontextmanager
async def _served(engine: RecordedEngine) -> AsyncIterator[str]:
    """The address of an engine that serves in this process."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(engine, port=port, lifespan="off", log_level="error"))
    task = asyncio.create_task(server.serve())
    try:
        yield f"http://127.0.0.1:{port}"  # a policy service asks until somebody answers
    finally:
        server.should_exit = True
        await task


async def replay_rollouts(recording: Recording) -> list[tuple[int, Finding]]:
    """Run the loop with recorded answers and compare what each training step leaves on record.

    Raises:
        InputError: the record is older than what this takes, or a rewriter or a third model took part.
        UnavailableError: a service did not come up.
    """
    models = {role: {"path": recording.paths.get(role, "")} for role in ROLES}
    over = {"run": {"steps": len(recording.steps), "eval_every": 0}, "models": models}
    config = merge(recording.read(recording.steps[0].step).config, over)
    _demand_replayable(recording, config)
    engines = {role: RecordedEngine(own) for role, own in answers_of(recording).items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with contextlib.AsyncExitStack() as stack:
            urls = {r: await stack.enter_async_context(_served(own)) for r, own in engines.items()}
            layout = layout_of(recording.paths, folder, urls)
            processes = untrained(layout, folder / "state", recording.paths)
            await stack.enter_async_context(processes)
            run_id = await _run(layout.settings, recording.pool, config)
        database = open_database(layout.settings.database_url)
        again = Recording.of_run(
            RunStore(database), ArtifactStore(layout.settings.artifacts_url), run_id
        )
        found = [
            (step.step, _compared(recording.read(step.step), again.read(step.step)))
            for step in recording.steps
        ]
        database.close()
    missed = sum(engine.missed for engine in engines.values())
    said = Finding("prompts", "differs" if missed else "same", f"{missed} are not on record")
    return [*found, (recording.steps[-1].step, said)]


def _demand_replayable(recording: Recording, config: Mapping[str, Any]) -> None:
    known = parse(config)
    if not recording.pool or set(recording.paths) != {*ROLES} or known.reward.kind != "votes":
        raise InputError(
            f"--replay-rollouts: given run {recording.run_id}, expected one with votes, without further models, and with its pool on "
            "record: `triforge replay RUN --save FOLDER` writes it"
        )
    if known.adaptation.controller != "none":
        raise InputError(
            f"--replay-rollouts: given adaptation.controller {known.adaptation.controller!r}, expected 'none': what the rewriter "
            "answered is not on record"
        )


def layout_of(
    models: Mapping[TrainedRole, str], folder: Path, engines: Mapping[TrainedRole, str]
) -> Layout:
    """The processes of a deployment of these model folders before these engines, which show no weights."""
    document = {
        "models": {role: {"path": path} for role, path in models.items()},
        "adaptation": {"controller": "none"},
    }
    write_document(folder / "run.toml", document)
    given = {f"{role}_engines": url for role, url in engines.items()}
    unchecked = {"weights_check": "sizes", "weights_verify": "info"}
    return plan_layout(
        parse(document), Settings().model_copy(update=given | unchecked), config_path=folder / "run.toml",
        state=folder / "state", auto_ports=True, environ={},
    )  # fmt: skip


@contextlib.asynccontextmanager
async def untrained(
    layout: Layout, state: Path, models: Mapping[TrainedRole, str]
) -> AsyncIterator[tuple[Supervisor, Broker]]:
    """Its processes; in the place of learners tasks of this one, which announce the same folder under each next version."""
    specs = tuple(spec for spec in layout.specs if spec.name not in _LEFT_OUT)
    supervisor = Supervisor(replace(layout, specs=specs), state, report=lambda _: None)
    broker = RedisBroker(layout.settings.redis_url, lease_s=layout.settings.lease_s)
    learners: list[asyncio.Task[None]] = []
    try:
        await supervisor.start()
        learners += [asyncio.create_task(_announce(broker, *model)) for model in models.items()]
        yield supervisor, broker
    finally:
        for task in learners:
            task.cancel()
        await asyncio.gather(*learners, return_exceptions=True)
        await broker.close()
        await supervisor.stop()


async def _announce(broker: Broker, role: TrainedRole, folder: str) -> None:
    cursor = await broker.last_id(batches_stream(role))
    while True:
        for entry, batch, _ in await broker.read_batches(role, cursor):
            cursor = entry
            if batch is not None:
                ready = WeightsReady(
                    run_id=batch.run_id, role=role, step=batch.step, version=batch.version + 1, uri=folder, digest="",
                )  # fmt: skip
                await broker.announce(ready)


async def _run(settings: Settings, pool: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The id of the run that was played; TriforgeError if it did not finish."""
    async with (
        EnvAdapterClient(settings.env_adapter_url) as pools,
        TrainerClient(settings.trainer_url) as trainer,
    ):
        made = await pools.create_pool({"name": "replayed", **pool})
        run = await trainer.submit(made.id, config=dict(config))
        while run.status not in ENDED:
            await asyncio.sleep(_LOOK_S)
            run = await trainer.run(run.id)
    if run.status != "finished":
        raise TriforgeError(f"the replayed run {run.status}: {run.reason}")
    return run.id


def _compared(then: StepRecord, now: StepRecord) -> Finding:
    """What the services wrote against what they had written, names of run and pool left out."""
    return compare(replace(then, records=_rows(then)), _rows(now), parse(then.config), "rollouts")


def _rows(record: StepRecord) -> list[dict[str, Any]]:
    rows = []
    for row in record.records:
        kept = {name: value for name, value in row.items() if name not in _NEW}
        own = {n: row[n].removeprefix(row["run_id"]) for n in ("group_id", "trajectory_id")}
        rows.append(kept | own)
    return sorted(rows, key=itemgetter("trajectory_id", "step_index"))
