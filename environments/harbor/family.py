"""Harbor tasks as an environment family."""

from __future__ import annotations

import io
import json
import re
import tarfile
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from posixpath import dirname
from random import Random
from shlex import quote
from typing import Final, Literal

from pydantic import Field

from environments.harbor import containers
from environments.harbor.execution import RunLimits, Workspace
from environments.harbor.folder import RESERVED, HarborTask, Layout, laid_out, read_folder
from triforge.config import Settings
from triforge.environments import plugins
from triforge.environments.kit import (
    Family,
    Observation,
    StepResult,
    Strict,
    parse_model,
    same_words,
)
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Reset, TaskDraft
from triforge.sandbox.client import Sandbox, shared
from triforge.types import Params

SUCCESS: Final = 1.0
_DONE: Final = "done"
_BLOCK: Final = re.compile(r"^[ \t]*```(.*)\n((?s:.*?))^[ \t]*```", re.MULTILINE)
_SHELLS: Final = ("", "bash", "sh", "shell")
_GUIDE: Final = (
    "You work in a shell. Think first, then write one script in a block that begins with ```bash and ends with ```; you are shown "
    "what it prints. Each script begins in {workdir}; files stay, variables and processes do not. There is no network. When the task "
    "is done, answer `done` instead of a script."
)
_NO_SCRIPT: Final = (
    "There is no script in your answer: a block that begins with ```bash, or `done`."
)


class PlayOptions(RunLimits):
    """Options of a run; README.md explains each."""

    answer: Literal["block", "whole"] = "block"
    guide: bool = True
    horizon: int = Field(default=30, ge=1, le=1000)
    success_at: float = SUCCESS


class GeneratorOptions(Strict):
    """Options of the generator: task folders lie below `folder` of the services' machine."""

    folder: str


def script_of(response: str, answer: Literal["block", "whole"]) -> str | None:
    """Return the script of a response, `done`, or None when there is neither."""
    text = response.strip()
    if text.strip("`. \n").lower() == _DONE:
        return _DONE
    if answer == "whole":
        return text or None
    blocks = [text for language, text in _BLOCK.findall(response) if language.strip() in _SHELLS]
    return (blocks[-1].strip() or None) if blocks else None


class HarborEpisode:
    """One task."""

    def __init__(self, workspace: Workspace, options: PlayOptions) -> None:
        self.done = False
        self._workspace, self._options = workspace, options
        self._left = options.horizon

    def start(self) -> Reset:
        layout = self._workspace.layout
        system = _GUIDE.format(workdir=layout.workdir) if self._options.guide else ""
        return Reset(observation=Observation(text=layout.instruction), system=system)

    def play(self, response: str) -> StepResult:
        script = script_of(response, self._options.answer)
        text = _NO_SCRIPT
        if script is not None and script != _DONE:
            result = self._workspace.run(script)
            status = f"\nstatus {result.status}" if result.status else ""
            text = f"{result.output}{status}".strip() or "(no output)"
        self._left -= 1
        self.done = script == _DONE or self._left == 0
        score = None
        if self.done:
            score, _ = self._workspace.reward()
            text = f"Reward {score:g}."
        return StepResult(
            observation=Observation(text=text),
            action=(script or "")[:2000],
            action_valid=script is not None,
            done=self.done,
            score=score,
        )


class HarborFamily(Family[HarborTask, PlayOptions]):
    """The family `harbor`; README.md explains it."""

    name = "harbor"
    about = About(
        what="Harbor's task folders, in a sandbox with a shell, or in Docker where they need a container",
        tasks="task folders",
        licence="Apache-2.0 (own)",
        programs=(("bwrap", "bubblewrap"), ("bash", "bash")),
    )
    params, play_options = HarborTask, PlayOptions
    success_at = SUCCESS
    blocks = True

    def __init__(
        self, sandbox: Sandbox | None = None, engine: containers.Containers | None = None
    ) -> None:
        self._sandbox, self._engine = sandbox, engine

    def workspace(self, layout: Layout, limits: RunLimits) -> Workspace:
        """Return the workspace of a task: the sandbox, or containers of its image, which is built first."""
        if not layout.needs:
            sandbox = self._sandbox or shared(with_shell=True)
            return Workspace(layout, limits, sandbox.run_blocking)
        settings = Settings.from_env()
        if not self._engine and not settings.containers:
            raise InputError(
                f"harbor: the task needs a container for {layout.needs}; set TRIFORGE_CONTAINERS, see environments/harbor/README.md"
            )
        engine = self._engine or containers.shared(settings.containers, settings.containers_network)
        asked = layout.asked.environment
        if asked.docker_image:
            image = engine.image(asked.docker_image)
        else:
            image = engine.built(_context(layout), asked.build_timeout_sec)
        laid = replace(
            layout, env=image.env | layout.env, workdir=layout.workdir or image.workdir,
            programs=[
                dirname(place.rstrip("/")) for place in image.env.get("PATH", "").split(":")
                if place.count("/") > 1 and place.split("/")[1] not in RESERVED
            ],
        )  # fmt: skip
        cpus = min(asked.cpus, limits.cpus)
        return Workspace(laid, limits, partial(engine.run, image.name, cpus))

    def instruction(self, given: HarborTask) -> str:
        return laid_out(given).instruction

    def kind(self, given: HarborTask) -> str:
        return given.name.partition("-")[0]

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return the instruction and the files that the agent finds, without the task's name, tests and solution."""
        given = self.read(draft.params)
        files = {**given.files, **given.binary}
        shown = {path: text for path, text in files.items() if path.startswith("environment/")}
        return json.dumps([same_words(draft.instruction), shown], sort_keys=True)

    def check(self, given: HarborTask) -> None:
        """Refuse a task that is won without a script, or that its own solution does not win."""
        layout = laid_out(given)
        nothing, _ = self.workspace(layout, RunLimits()).reward()
        if nothing >= SUCCESS:
            raise InputError(
                f"harbor {given.name}: its tests reward doing nothing with {nothing:g}"
            )
        if not layout.solution:
            return
        solved = self.workspace(layout, RunLimits())
        result = solved.run("bash /solution/solve.sh", solving=True)
        reward, tests = solved.reward()
        if reward < SUCCESS:
            raise InputError(
                f"harbor {given.name}: its own solution earns {reward:g}, expected {SUCCESS:g}. It printed: "
                f"{result.output[-300:].strip()!r}; the tests: {tests[-300:].strip()!r}"
            )

    def begin(
        self, given: HarborTask, options: PlayOptions, _announced: str, _seed: int
    ) -> HarborEpisode:
        return HarborEpisode(self.workspace(laid_out(given), options), options)

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Draw `count` tasks of the folders without replacement, or all if there are fewer."""
        wanted = parse_model(GeneratorOptions, options, "harbor generate")
        plugins.demand_files("harbor generate: field folder", "environments/harbor/README.md")
        folders = sorted(path.parent for path in Path(wanted.folder).glob("*/task.toml"))
        sample = Random(f"harbor {seed}").sample(folders, min(count, len(folders)))  # noqa: S311
        return [read_folder(folder) for folder in sample]

    def solution(self, given: HarborTask, options: PlayOptions) -> Sequence[str] | None:
        """Return the task's own solution as a script that lays out its folder and runs it."""
        layout = laid_out(given)
        if not layout.solution:
            return None
        env = "".join(f"export {quote(f'{k}={v}')}\n" for k, v in layout.asked.solution.env.items())
        lines = ["mkdir -p /solution"]
        for path, _, _, content in layout.solution:
            lines.append(f"mkdir -p {quote(path.rpartition('/')[0])}")
            lines.append(f"base64 -d > {quote(path)} <<< {quote(content)}")
        script = "\n".join([*lines, f"{env}bash /solution/solve.sh"])
        return [f"```bash\n{script}\n```" if options.answer == "block" else script, _DONE]


def _context(layout: Layout) -> bytes:
    """Return the build context, the same bytes for the same files."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for path, mode, _, content in sorted(layout.context):
            data = b64decode(content)
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = mode, len(data)
            tar.addfile(entry, io.BytesIO(data))
    return held.getvalue()


FAMILY: Final = HarborFamily()
