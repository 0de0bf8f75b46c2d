"""The rules of the house that a tool can check: sizes, names, dangerous calls, arrows, versions, decision records."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import triforge

ROOT = Path(__file__).parents[2]
CODE = ("triforge", "services", "environments", "demo")
ALL_PYTHON = (*CODE, "bench", "chaos", "experiments", "scripts", "tests")
SERVICES = ("policy", "local_engine", "env_adapter", "reward", "trainer", "dashboard")
HEAVY = {"torch", "transformers"}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
WEB = {"fastapi", "starlette"}
SETUP_EXTRAS = (
    "trainer",
    "local-engine",
    "lora",
    "smollm2",
    "demo",
    "toy-text",
    "reasoning-gym",
    "rlve",
    "miniwob",
    "dev",
)

# Imports every module of one package from a folder that holds nothing else of ours, and prints which of the watched
# top-level names each module brought in.
ISOLATED = """
import importlib, json, pkgutil, sys
root, package, repo, watched = sys.argv[1], sys.argv[2], sys.argv[3], set(sys.argv[4].split(","))
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f)]
sys.path[:] = [root] + [p for p in sys.path if p not in ("", repo) and "__editable__" not in p]
names = [package]
top = importlib.import_module(package)
names += sorted(m.name for m in pkgutil.walk_packages(top.__path__, package + "."))
seen, found = set(), {}
for name in names:
    if ".migrations" in name or name.endswith("__main__"):
        continue
    importlib.import_module(name)
    loaded = {m.partition(".")[0] for m in sys.modules} & watched
    loaded |= {".".join(m.split(".")[:2]) for m in sys.modules if m.startswith("services.")}
    found[name] = sorted(loaded - seen)
    seen |= loaded
assert top.__file__.startswith(root), top.__file__
print(json.dumps(found))
"""


def python_files(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def where(path: Path, node: ast.AST | None = None) -> str:
    line = f":{node.lineno}" if node is not None and hasattr(node, "lineno") else ""
    return f"{path.relative_to(ROOT)}{line}"


def nodes(*folders: str) -> Iterator[tuple[Path, ast.AST]]:
    for path in python_files(*folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            yield path, node


def imported(node: ast.AST) -> set[str]:
    """The top-level names that an import statement brings in; empty for any other node."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return {node.module.partition(".")[0]}
    return set()


def true_keywords(node: ast.AST, name: str) -> list[ast.keyword]:
    """The keyword arguments `name=...` of a call that are anything but a literal False."""
    if not isinstance(node, ast.Call):
        return []
    return [
        keyword
        for keyword in node.keywords
        if keyword.arg == name
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]


def test_no_module_has_a_vague_name() -> None:
    modules = {
        path
        for path in python_files(*ALL_PYTHON)
        if VAGUE_NAMES & {path.stem, *path.relative_to(ROOT).parts}
    }
    assert [where(path) for path in sorted(modules)] == []


def test_nothing_is_pickled() -> None:
    assert [where(p, n) for p, n in nodes(*CODE) if imported(n) & PICKLERS] == []
    assert [where(p, n) for p, n in nodes(*CODE) if true_keywords(n, "allow_pickle")] == []


def test_torch_loads_weights_only() -> None:
    loads = [
        (path, node)
        for path, node in nodes(*CODE)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [where(p, n) for p, n in loads if not true_keywords(n, "weights_only")] == []


def test_no_shell_runs_a_string() -> None:
    assert [where(p, n) for p, n in nodes(*CODE) if true_keywords(n, "shell")] == []
    calls = [(p, n) for p, n in nodes(*CODE) if isinstance(n, ast.Call)]
    shells = {"os.system", "os.popen", "subprocess.getoutput", "asyncio.create_subprocess_shell"}
    assert [where(p, n) for p, n in calls if ast.unparse(n.func) in shells] == []


def test_no_model_folder_runs_its_own_code() -> None:
    assert [where(p, n) for p, n in nodes(*CODE) if true_keywords(n, "trust_remote_code")] == []
    spelled = [
        (path, node)
        for path, node in nodes(*CODE)
        if isinstance(node, ast.Constant) and node.value == "trust_remote_code"
    ]
    assert [where(p, n) for p, n in spelled] == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"#.*\b(TODO|FIXME|XXX)\b|\bNotImplementedError\b")
    left = [where(p) for p in python_files(*CODE) if marks.search(p.read_text(encoding="utf-8"))]
    assert left == []


def service_exists(service: str) -> bool:
    return (ROOT / "services" / service / "__init__.py").is_file()


def import_alone(package: str, target: Path, watched: set[str]) -> dict[str, list[str]]:
    """Import `package` in a fresh interpreter from a folder with the library and, for a service, that service only."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "triforge", target / "triforge", ignore=ignore)
    if package.startswith("services."):
        (target / "services").mkdir()
        for shared in (ROOT / "services").glob("*.py"):
            shutil.copy(shared, target / "services")
        folder = Path(package.replace(".", "/"))
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED, str(target), package, str(ROOT), ",".join(watched)],
        cwd=target,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{package} does not import alone:\n{done.stderr[-3000:]}"
    loaded: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return {name: what for name, what in loaded.items() if what}


def test_the_library_imports_alone_and_stays_light(tmp_path: Path) -> None:
    loaded = import_alone("triforge", tmp_path, HEAVY | WEB | {"services", "environments"})
    web = {name for name, what in loaded.items() if set(what) <= WEB}
    assert loaded.keys() == web == {name for name in loaded if name.startswith("triforge.web")}


@pytest.mark.parametrize("service", [service for service in SERVICES if service_exists(service)])
def test_a_service_imports_without_the_others(service: str, tmp_path: Path) -> None:
    light = service in {"policy", "env_adapter", "reward", "dashboard"}
    loaded = import_alone(f"services.{service}", tmp_path, HEAVY if light else set())
    everything = {what for names in loaded.values() for what in names}
    assert everything == {f"services.{service}"}, loaded


def test_the_changelog_names_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^\]]+)\]", text, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == triforge.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == triforge.__version__


def plain_name(requirement: str) -> str:
    name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_package_that_setup_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [p for p in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", p)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in SETUP_EXTRAS:
        wanted += project["optional-dependencies"][extra]
    assert {plain_name(w) for w in wanted} - {plain_name(p) for p in pins} == set()


def test_every_make_verb_in_the_documents_exists_and_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    explained = set(re.findall(r"^([a-z0-9-]+):.*## \S", makefile, flags=re.MULTILINE))
    assert targets == explained
    for name in ("README.md", "CONTRIBUTING.md"):
        path = ROOT / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets
