"""A plan as the files of other deployments on the same box: an override for docker compose, and values of the Helm chart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from triforge.config import RunConfig, as_toml, parse
from triforge.errors import ConfigError
from triforge.planning.options import sglang_options
from triforge.planning.place import Engine, Learner
from triforge.planning.plan import Plan
from triforge.planning.shapes import LINEAR

_SERVED: Final = ("policy", "reward", "rewriter")  # that the files know
_TRAINED: Final = ("policy", "reward")
_OFF: Final = {"profiles": ["unused"]}
_REPLACED: Final = ("deploy", "profiles")  # compose would add to those of its own file


def compose(plan: Plan, document: Mapping[str, Any]) -> str:
    """Return the override for a run of a document."""
    _demand_known(plan)
    config = parse(document)
    services: dict[str, dict[str, Any]] = {f"sglang-{role}": _OFF for role in _SERVED}
    services |= {f"cuda-learner-{role}": _OFF for role in _TRAINED}
    for role, engines in _by_role(plan.engines).items():
        names = [f"{role}{f'-{n}' if n > 1 else ''}" for n in range(1, len(engines) + 1)]
        for name, engine in zip(names, engines, strict=True):
            services[f"sglang-{name}"] = _server(config, engine, name)
        urls = ",".join(f"http://engine-{name}:9001" for name in names)
        services[f"{role}-model"] = {"environment": {"TRIFORGE_ENGINES": urls}}
    for learner in plan.learners:
        run = [
            "python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={learner.ranks}", "-m",
            "services.trainer", "learner",
        ]  # fmt: skip
        several = {"entrypoint": run} if learner.ranks > 1 else {}
        services[f"cuda-learner-{learner.role}"] = several | _devices(learner)
    command = "docker compose -f docker-compose.yml -f FILE --profile gpu up -d --wait"
    where = (
        "TRIFORGE_CONFIG, in the volume `models` as the folders that POLICY_MODEL and the like name"
    )
    lines = [_header(f"{command} (2.24 or newer)", where, document), "services:"]
    for name, service in services.items():
        lines.append(f"  {name}:")
        for key, value in service.items():
            tag = "!override " if key in _REPLACED else ""
            lines.append(f"    {key}: {tag}{json.dumps(value)}")
    return "\n".join(lines)


def _server(config: RunConfig, engine: Engine, name: str) -> dict[str, Any]:
    model = f"{engine.role.upper()}_MODEL"
    command = [
        "python3", "-m", "sglang.launch_server", f"--model-path=${{{model}:-/models/demo/{engine.role}}}",
        f"--served-model-name={engine.role}", "--host=0.0.0.0", "--port=9001", "--weight-version=0",
        "--api-key=${TRIFORGE_API_KEY:?run make env}", "--admin-api-key=${TRIFORGE_ADMIN_API_KEY:?run make env}",
        "--enable-metrics", *sglang_options(config, engine.role, LINEAR), f"--tp={engine.tensor_parallel}", f"--mem-fraction-static={engine.memory_fraction}",
    ]  # fmt: skip
    first = name == engine.role
    more = {"extends": {"file": "docker-compose.yml", "service": f"sglang-{engine.role}"}}
    own = {} if first else more | {"networks": {"default": {"aliases": [f"engine-{name}"]}}}
    return own | {"command": command} | _devices(engine)


def _devices(part: Engine | Learner) -> dict[str, Any]:
    ids = [str(card) for card in part.cards]
    gpu = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [gpu]}}}}


def kubernetes(plan: Plan, document: Mapping[str, Any]) -> str:
    """Return values of the chart for a run of a document. ConfigError: cards are shared."""
    _demand_known(plan)
    config = parse(document)
    used = [card for part in plan.parts for card in part.cards]
    if len(used) > len(set(used)):
        raise ConfigError(
            "--write k8s: given a plan whose parts share cards, expected a card for each: Kubernetes gives a card to one pod; use "
            "more cards, or --write compose"
        )
    engines, learners = _by_role(plan.engines), {one.role: one for one in plan.learners}
    spread = any(learner.ranks > 1 for learner in plan.learners)
    replicas = {f"engine-{role}": len(engines.get(role, ())) for role in _SERVED}
    values: dict[str, Any] = {
        "overlay": "gpu-cluster" if spread else "gpu-single-node",
        "replicas": replicas,
        "engines": {
            role: {
                "gpus": own[0].tensor_parallel,
                "args": [f"--mem-fraction-static={own[0].memory_fraction}", *sglang_options(config, role, LINEAR)],
            }
            for role, own in engines.items()
        },
    }  # fmt: skip
    if spread:
        values["learners"] = {
            role: {"nodes": 1, "gpus": one.ranks} for role, one in learners.items()
        }
    where = "run.toml in the claim `models`, next to policy/, reward/ and rewriter/"
    command = "helm install triforge k8s/helm/triforge -n triforge -f FILE"
    return f"{_header(command, where, document)}\n{json.dumps(values, indent=2)}"


def _header(command: str, where: str, document: Mapping[str, Any]) -> str:
    """Return a comment: the command that applies the file, and the run's document without `machine`, which a start here reads alone."""
    given = {n: s for n, s in document.items() if any(value != {} for value in s.values())}
    own = {name: section for name, section in given.items() if name != "machine"}
    lines = as_toml(own).strip().splitlines()
    first = (
        f"Written by `triforge plan`. {command}",
        f"The run's document but for its paths ({where}):",
    )
    return "\n".join(f"# {line}".rstrip() for line in (*first, *lines))


def _by_role(engines: Iterable[Engine]) -> dict[str, list[Engine]]:
    found: dict[str, list[Engine]] = {}
    for engine in engines:
        found.setdefault(engine.role, []).append(engine)
    return found


def _demand_known(plan: Plan) -> None:
    roles = {part.role for part in plan.parts}
    if other := sorted(roles - set(_SERVED)):
        raise ConfigError(
            f"--write: given the further model {other[0]!r}, expected {', '.join(_SERVED)}: these files know no others"
        )
    if not plan.cards:
        raise ConfigError("--write: given no cards, expected some: --gpus 8x80GB")
