"""Rules that a tool can check: names, dangerous calls, versions, the verbs of make."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import triforge
from scripts import lock

ROOT = Path(__file__).parents[2]
CODE = ("triforge", "services", "environments", "methods", "demo")
ALL_PYTHON = (*CODE, "bench", "chaos", "experiments", "scripts", "tests")
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}


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


@cache
def nodes(*folders: str) -> list[tuple[Path, ast.AST]]:
    parsed = ((p, ast.parse(p.read_text(encoding="utf-8"), str(p))) for p in python_files(*folders))
    return [(path, node) for path, tree in parsed for node in ast.walk(tree)]


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
    silent = [
        where(path, node)
        for path, node in nodes(*CODE)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("from_pretrained", "from_config")
        and {"dtype", "local_files_only"} & (options := {k.arg for k in node.keywords})
        and "trust_remote_code" not in options  # where it is missing, it is asked for on stdin
    ]
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"#.*\b(TODO|FIXME|XXX)\b|\bNotImplementedError\b")
    left = [where(p) for p in python_files(*CODE) if marks.search(p.read_text(encoding="utf-8"))]
    assert left == []


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


def named_by_pyproject(extras: tuple[str, ...]) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chosen = (project["optional-dependencies"][extra] for extra in extras)
    return {plain_name(w) for w in (*project["dependencies"], *(w for ws in chosen for w in ws))}


def test_constraints_pin_every_package_that_setup_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [p for p in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", p)] == []
    assert named_by_pyproject(lock.TEST) - {plain_name(p) for p in pins} == set()


def locked(text: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of every package of a lock file."""
    blocks = re.findall(r"^([A-Za-z0-9._-]+)==([\w.]+)(.*\n(?: .*\n)*)", text, re.MULTILINE)
    return {plain_name(n): (v, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", rest))) for n, v, rest in blocks}  # fmt: skip


def lock_file(name: str) -> str:
    return (ROOT / f"requirements-{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["demo", "test", "images"])
def test_every_package_of_a_lock_file_has_the_version_of_the_tests_and_hashes(name: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    tested = {plain_name(name): version for name, version in pins.items()}
    found = locked(lock_file(name))
    assert {n for n, (v, _) in found.items() if tested.get(n, v) != v} == set(), "make lock"
    assert {name for name, (_, hashes) in found.items() if not hashes} == set()


def test_lock_files_hold_what_their_users_need_and_no_more() -> None:
    """Also that only torch is installed without hashes: everything else is asked for in these files."""
    demo, tests, images = (set(locked(lock_file(name))) for name in ("demo", "test", "images"))
    services = set(locked(lock_file("images").partition(lock.WITH_TORCH)[0]))
    assert lock_file("test").count("-r requirements-demo.txt\n") == 1
    for extras, found in ((lock.DEMO, demo), (lock.TEST, demo | tests), (lock.SERVICES, services), (lock.IMAGES, images)):  # fmt: skip
        assert named_by_pyproject(extras) - found <= {"torch"}, "make lock"
    assert images - tests - demo == set()
    assert {"accelerate", "gguf"} <= demo & images  # transformers reads GGUF with both
    assert named_by_pyproject(("dev", "wandb", "miniwob", "experiments")) & demo - named_by_pyproject(()) == {"pyyaml"}  # fmt: skip
    assert {"transformers", "safetensors", "matplotlib"} & services == set()
    assert {"matplotlib", "pytest"} & images == set()


@pytest.mark.parametrize("path", ["scripts/setup.sh", "Dockerfile"])
def test_only_torch_and_what_a_user_adds_are_installed_without_hashes(path: str) -> None:
    text = re.sub(r"\\\n\s*", " ", (ROOT / path).read_text(encoding="utf-8"))
    installs = [x for line in text.splitlines() for x in line.split("&&") if "pip install" in x and not x.startswith("#")]  # fmt: skip
    for words in installs:
        by_hash = "--no-deps --require-hashes -r" in words
        assert by_hash or re.search(r"(torch|\$\{EXTRA_PACKAGES\}; fi|--no-deps -e \.) *$", words), words  # fmt: skip


def test_every_make_verb_in_the_documents_exists_and_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    explained = set(re.findall(r"^([a-z0-9-]+):.*## \S", makefile, flags=re.MULTILINE))
    assert targets == explained
    for name in ("README.md", "CONTRIBUTING.md"):
        path = ROOT / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= targets
