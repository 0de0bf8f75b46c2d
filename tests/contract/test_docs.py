"""The docs and the code agree: plug-ins are documented, links lead to files and headings, commands and requests parse."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
from fastapi import FastAPI
from pydantic import BaseModel

import triforge
from scripts import gen_docs, gen_interfaces
from scripts.gen_interfaces import apis
from services.env_adapter.pools.changes import Change, PoolChange, Rollback
from services.policy.api.chat import ChatRequest
from services.policy.api.routes import GenerateBatch
from services.reward.requests import JudgeRequest
from services.trainer.runs.runs import RunRequest
from triforge import methods
from triforge.algorithms.presets import preset_names
from triforge.cli.main import command_line
from triforge.cli.training import Training
from triforge.config import merge, parse, read_document
from triforge.environments import registry
from triforge.testing.check_environment import check_environment, require
from triforge.types import PlanRequest, PoolRequest, WeightsUpdate

ROOT = Path(__file__).parents[2]
REST = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("services/**/*.md"),
        *ROOT.glob("methods/**/*.md"),
    ],
    key=lambda path: path.as_posix(),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


# ---- what is generated, and what has to be documented ----


def test_the_table_of_environments_is_up_to_date() -> None:
    assert gen_docs.main(["--check"]) == 0, "run make docs"


@pytest.mark.parametrize("page", ["types", "configuration", "algorithms", "cli", "rest"])
def test_each_page_of_the_reference_can_be_generated(page: str) -> None:
    make = {
        "types": gen_docs.messages_page,
        "configuration": gen_docs.configuration_page,
        "algorithms": gen_docs.algorithms_page,
        "cli": gen_interfaces.cli_page,
        "rest": gen_interfaces.rest_page,
    }[page]
    assert make().startswith("# ")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", registry.known())
def test_every_environment_family_is_documented(name: str) -> None:
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in page
    assert f"environments/{name}/README.md" in page


@pytest.mark.parametrize("name", methods.known())
def test_every_method_is_documented(name: str) -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert f"(../methods/{name}/README.md)" in page


# ---- links and commands ----


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    bad = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        where, _, anchor = target.partition("#")
        file = (path.parent / where).resolve() if where else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            bad.append(target)
    assert bad == []


@pytest.mark.parametrize("path", [p for p in PAGES if "adr" not in p.parts], ids=name_of)
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    inside = r"`((?:triforge|services|tests|docs|scripts|configs|bench|demo|experiments|environments|methods)/[\w./-]*\w/?)`"
    named = re.findall(inside, prose(path))
    named = [name for name in named if not name.startswith("docs/reference")]
    assert [name for name in named if not (ROOT / name).exists()] == []


def cli_lines() -> list[str]:
    text = "\n".join(block for page in PAGES for _, block in FENCE.findall(page.read_text("utf-8")))
    typed = r"^(?:\.venv/bin/)?triforge (.+?)(?: +#.*)?$"
    return sorted(set(re.findall(typed, text.replace("\\\n", " "), re.MULTILINE)))


def commands(group: Any, path: str = "") -> dict[str, Any]:
    """Every command of the command line by its whole name."""
    found: dict[str, Any] = {}
    for name, inner in group.commands.items():
        whole = f"{path} {name}".strip()
        found |= commands(inner, whole) if hasattr(inner, "commands") else {whole: inner}
    return found


COMMANDS = commands(typer.main.get_command(command_line()))


@pytest.mark.parametrize("line", cli_lines())
def test_every_command_line_of_the_documents_can_be_typed(line: str) -> None:
    words = shlex.split(line)
    length = next(n for n in (1, 2, 3) if n == 3 or " ".join(words[:n]) in COMMANDS)
    name = " ".join(words[:length])
    assert name in COMMANDS
    COMMANDS[name].make_context(name, words[length:])  # parses, runs nothing


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_that_a_page_names_exists(path: Path) -> None:
    named = re.findall(
        r"`triforge ((?:pool|task|proposal|run|env|agent|key|tenant|judge) \w[\w-]*|\w[\w-]*)",
        prose(path),
    )
    assert [name for name in named if name not in COMMANDS] == []


# ---- what README writes in Python ----


def python_of_the_readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return "\n".join(block for kind, block in FENCE.findall(text) if kind == "python")


def test_the_training_of_the_readme_can_be_called() -> None:
    (call,) = re.findall(r"triforge\.train\((.*)\)", python_of_the_readme())
    given = ast.parse(f"f({call})", mode="eval").body
    assert isinstance(given, ast.Call)
    arguments = {word.arg: ast.literal_eval(word.value) for word in given.keywords}
    names = inspect.signature(triforge.train).parameters.keys() | {
        field.name for field in dataclasses.fields(Training)
    }
    assert arguments.keys() <= names
    shown = set(re.findall(r"trained\.(\w+)", python_of_the_readme()))
    assert shown <= {field.name for field in dataclasses.fields(triforge.Trained)} | set(
        dir(triforge.Trained)
    )


async def test_the_environment_of_the_readme_keeps_the_contract() -> None:
    module = ModuleType("my_env")
    code = python_of_the_readme()
    environment = code[code.index("from triforge.environments") : code.index("import json\n")]
    exec(environment, vars(module))
    require(await check_environment(module.FAMILY))


# ---- the curl walk-through ----


@dataclass(frozen=True)
class Call:
    """One curl of docs/train.md#over-rest."""

    method: str
    port: int
    path: str
    body: Any = None


def calls() -> list[Call]:
    script = "\n".join(block for kind, block in FENCE.findall(REST) if kind == "bash")
    script = re.sub(r"^\s*#.*$", "", script, flags=re.MULTILINE)
    return [call(text) for text in re.findall(r"curl (?:'[^']*'|[^'\n|)])+", script)]


def call(text: str) -> Call:
    words = shlex.split(text)
    url = urlsplit(next(word for word in words if word.startswith("http")))
    assert url.hostname == "127.0.0.1"
    assert url.port is not None
    body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
    method = words[words.index("-X") + 1] if "-X" in words else ("GET" if body is None else "POST")
    return Call(method, url.port, re.sub(r"\$\w+", "x", url.path), body)


def described(app: FastAPI) -> set[tuple[str, str]]:
    """(METHOD, path template) of every route that the app describes."""
    return {
        (method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }


BODIES: dict[str, type[BaseModel]] = {
    "/v1/pools": PoolRequest,
    "/v1/pools/{pool}": PoolChange,
    "/v1/pools/{pool}/plans": PlanRequest,
    "/v1/tasks/{task_id}/pin": Change,
    "/v1/tasks/{task_id}/rollback": Rollback,
    "/v1/proposals/{proposal_id}/approve": Change,
    "/v1/runs": RunRequest,
    "/v1/judge": JudgeRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/generate": GenerateBatch,
    "/v1/weights": WeightsUpdate,
}


def template_of(app: FastAPI, given: Call) -> str:
    for method, path in described(app):
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        if method == given.method and re.fullmatch(pattern, given.path):
            return path
    raise AssertionError(f"no service has the route {given.method} {given.path}")


def test_every_curl_meets_a_route_and_brings_what_it_takes() -> None:
    apps = {port: app for port, (app, _) in apis().items()}
    found = calls()
    assert len(found) >= 12
    for given in found:
        template = template_of(apps[given.port], given)
        if given.body is not None:
            BODIES[template].model_validate(given.body)


def test_the_pools_and_runs_of_the_walk_through_are_possible() -> None:
    for given in calls():
        if isinstance(given.body, dict) and "generate" in given.body:
            family = registry.family(given.body["environment"])
            options = given.body["generate"].get("options", {})
            assert len(family.generate(count=2, seed=1, options=options)) == 2
        if isinstance(given.body, dict) and "config" in given.body:
            document = read_document(ROOT / "configs" / "demo.toml")
            parse(merge(document, given.body["config"]))
