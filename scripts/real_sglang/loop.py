"""Two whole steps of the closed loop with the policy and the reward model served by a real engine.

Everything else is an ordinary `triforge up`: services, workers, learners, Valkey, SQLite. What was trained and what serves is
then read from the run's record and from the servers themselves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from scripts.real_sglang.folders import truncated
from scripts.real_sglang.install import HERE, Tell
from scripts.real_sglang.server import ADMIN_KEY, API_KEY, serving
from services.policy.engines.sglang import SGLangEngine
from services.policy.engines.vllm import VLLMEngine
from triforge.cli.deployment import settings as addresses
from triforge.cli.started import deployment
from triforge.cli.train import Trained, conduct
from triforge.cli.training import Training
from triforge.clients.policy import PolicyClient
from triforge.config import merge, read_document
from triforge.errors import WeightsError
from triforge.supervisor.process import ProcessSpec
from triforge.types import WeightsUpdate

STEPS = 2
Client = type[SGLangEngine] | type[VLLMEngine]
TASKS = Training(
    env="household",
    seed=1,
    tasks=8,
    heldout=2,
    generate={"receptacles": [3, 4], "distractors": [0, 1], "goals": ["place"]},
    options={"wording": "alfworld"},
)


async def two_steps(
    specs: Sequence[ProcessSpec], client: Client, model: Path, state: Path, tell: Tell
) -> int:
    """Start two servers and a deployment, train two steps, look at what came of it, stop everything.

    Returns:
        0 if all was right; faults are printed.
    """
    service = state / "loop"
    shutil.rmtree(service, ignore_errors=True)
    service.mkdir(parents=True)
    models = {role: {"path": str(model)} for role in ("policy", "reward")}
    document = merge(read_document(HERE / "loop.toml"), {"models": models})
    async with serving(specs, state) as (acts, judges):
        tell(f"policy served at {acts.url}, reward model at {judges.url}; starting triforge up")
        environ = {
            "TRIFORGE_API_KEY": API_KEY,
            "TRIFORGE_ADMIN_API_KEY": ADMIN_KEY,
            "TRIFORGE_POLICY_ENGINES": client.scheme + acts.url,
            "TRIFORGE_REWARD_ENGINES": client.scheme + judges.url,
            "TRIFORGE_REWRITER_MODEL_URL": f"{judges.url}/v1",
        }
        os.environ.update(environ)  # for the clients of this process as well
        async with deployment(document, service, tell) as found:
            wanted = replace(TASKS, state=service, export=service / "run.parquet")
            record = await conduct(wanted, document, found, Console(soft_wrap=True), tell)
            tell(f"the run ended as {record.run.status} after {record.seconds:.0f} s")
            wrong = list(_wrong_with(record, pq.read_table(service / "run.parquet").to_pylist()))
            final = {"policy": record.run.policy_version, "reward": record.run.reward_version}
            engines = {
                role: client(client.scheme + server.url, api_key=API_KEY)
                for role, server in (("policy", acts), ("reward", judges))
            }
            wrong += await _wrong_with_servers(engines, final, service)
            wrong += await _refuses_truncated(engines["policy"], model, final["policy"], service)
            for engine in engines.values():
                await engine.close()
    for sentence in wrong:
        tell(f"wrong: {sentence}")
    if not wrong:
        tell(f"both models moved by {STEPS} versions; every trained token is of the right one")
    return int(bool(wrong))


def _wrong_with(record: Trained, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the steps and with the versions of what was trained on."""
    if (record.run.status, record.run.step) != ("finished", STEPS):
        yield f"the run is {record.run.status} at step {record.run.step}: {record.run.reason}"
        return
    first = record.steps[0]
    for number, step in enumerate(record.steps):
        found = (
            step.policy_version - first.policy_version,
            step.reward_version - first.reward_version,
        )
        if found != (number, number):
            yield f"after step {step.step} the versions have moved by {found}, expected {number}"
    trained = [row for row in rows if row["reason"] == ""]
    votes = [(row["step"], vote) for row in rows for vote in row["votes"] if vote["reason"] == ""]
    if not trained or not votes:
        yield f"{len(trained)} steps of the policy and {len(votes)} votes were trained on"
    samples = [
        (row["trajectory_id"], first.policy_version + row["step"] - 1,
         row["response_ids"], row["response_logprobs"], row["policy_versions"])
        for row in trained
    ] + [
        (f"a vote of step {step}", first.reward_version + step - 1, vote["ids"], vote["logprobs"], vote["versions"])
        for step, vote in votes
    ]  # fmt: skip
    for name, version, ids, logprobs, versions in samples:
        if versions != [version] * len(ids):
            yield f"{name}: tokens of versions {versions}, expected {len(ids)} of version {version}"
        if not len(ids) == len(logprobs) > 0:
            yield f"{name}: {len(ids)} tokens and {len(logprobs)} log-probabilities"


async def _wrong_with_servers(
    engines: Mapping[str, SGLangEngine | VLLMEngine], final: Mapping[str, int], service: Path
) -> list[str]:
    """Whether the servers themselves say that they serve the last versions, from the run's own folders."""
    wrong = []
    for role, engine in engines.items():
        info = await engine.info()
        if info.version != final[role]:
            wrong.append(f"{role}: serves {info.version}, expected {final[role]}")
        if not Path(info.model_path).is_relative_to(service):
            wrong.append(f"{role}: serves {info.model_path}, expected a folder below {service}")
    return wrong


async def _refuses_truncated(
    policy: SGLangEngine | VLLMEngine, model: Path, live: int, service: Path
) -> list[str]:
    """Return what is wrong if the policy service lets a truncated folder through, which would end SGLang."""
    folder = truncated(model, service / "truncated")
    url = addresses(service).policy_model_url
    async with PolicyClient(url, api_key=API_KEY, admin_api_key=ADMIN_KEY) as client:
        try:
            await client.update_weights(WeightsUpdate(version=live + 1, uri=str(folder)))
        except WeightsError as error:
            refused = error.detail
        else:
            return ["the policy service took a truncated weight folder"]
    if str(folder) not in refused:
        return [f"the refusal of a truncated folder does not name it: {refused}"]
    if (await policy.info()).version != live:
        return ["a truncated folder has moved the version that serves"]
    return []
