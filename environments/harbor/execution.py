"""One task's files between the scripts that run on them, and the verifier that runs on them last.

Each script runs in a sandbox or a container of its own (`inside.py`); only files live on from one to the next, checked here. The
verifier's sandbox gets the files that the agent left and the tests, and reads the reward from a folder that was empty when the tests
began.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from statistics import fmean
from typing import Any, Final

from pydantic import Field

from environments.harbor import inside
from environments.harbor.containers import Run
from environments.harbor.folder import HOME, RESERVED, Layout
from environments.harbor.inside import Entry
from triforge.environments.kit import Strict
from triforge.errors import InputError
from triforge.json_text import written
from triforge.sandbox.limits import MIB, Limits, RunResult
from triforge.types import number

_PROGRAM: Final = Path(inside.__file__).read_text(encoding="utf-8")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_PASSWD: Final[Entry] = (
    "/etc/passwd",
    0o644,
    "f",
    "YWdlbnQ6eDo2NTUzNDo2NTUzNDo6L3Jvb3Q6L2Jpbi9iYXNoCg==",
)  # fmt: skip  (agent:x:65534:65534::/root:/bin/bash)
_LOGS: Final = "/logs/verifier"
_REWARDS: Final = (f"{_LOGS}/reward.json", f"{_LOGS}/reward.txt")
_SPARE_S: Final = 20.0  # of a run, to lay files out and to gather them


class RunLimits(Strict):
    """Limits of scripts and of the verifier; README.md explains each."""

    command_s: float = Field(default=30.0, gt=0, le=3600)
    verifier_s: float = Field(default=120.0, gt=0, le=3600)
    memory_mb: int = Field(default=1024, ge=64, le=2**16)
    cpus: float = Field(default=1.0, gt=0, le=256)
    processes: int = Field(default=64, ge=8, le=2**15)
    disk_mb: int = Field(default=16, ge=1, le=24)
    shown: int = Field(default=8000, ge=100, le=10**6)


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """The result of a script; status None when a limit ended it."""

    status: int | None
    output: str


class Workspace:
    """The files of one episode."""

    def __init__(self, layout: Layout, limits: RunLimits, run: Run) -> None:
        self.layout, self._limits, self._run = layout, limits, run
        self._tree: list[Entry] = [(HOME, 0o755, "d", ""), *layout.tree]
        self._leave = [f"/{name}" for name in RESERVED] + layout.programs
        self._passwd = [] if layout.needs else [_PASSWD]
        if f"{layout.workdir}/".startswith(tuple(f"{one}/" for one in self._leave)):
            raise InputError(
                f"harbor: the work lies in {layout.workdir}, among programs, whose files are always the image's"
            )

    def run(self, script: str, *, solving: bool = False) -> ScriptResult:
        """Run a script of the agent, or the task's own solution with its folder; after a limit the files are as before."""
        added = [*self._passwd, *(self.layout.solution if solving else [])]
        env = self.layout.env | (self.layout.asked.solution.env if solving else {})
        seconds = self._limits.verifier_s if solving else self._limits.command_s
        report, result = self._call(["/bin/bash", "-c", script], added, env, seconds, keep=True)
        if report is None:
            return ScriptResult(None, f"ended by its limits ({result.ended}); files are as before")
        self._tree = [entry for entry in map(self._entry, report["tree"]) if entry is not None]
        if report["status"] is None:
            return ScriptResult(None, f"{report['output']}\nended after {seconds:g} s")
        return ScriptResult(report["status"], report["output"])

    def reward(self) -> tuple[float, str]:
        """Run the verifier on the files as they are: the reward, 0 without one, and what the tests printed."""
        added = [
            *self._passwd,
            *self.layout.tests,
            (_LOGS, 0o755, "d", ""),
            ("/logs/home", 0o755, "d", ""),
        ]
        env = {**self.layout.env, **self.layout.asked.verifier.env, "HOME": "/logs/home"}
        env["PYTHONNOUSERSITE"] = "1"
        seconds = min(self.layout.asked.verifier.timeout_sec, self._limits.verifier_s)
        report, result = self._call(
            ["/bin/bash", "/tests/test.sh"], added, env, seconds, keep=False
        )
        if report is None:
            return 0.0, f"the tests ended by {result.ended} {result.stderr[-300:]}"
        if report["status"] is None or report["status"] < 0:  # ended from outside
            return 0.0, f"the tests were ended: {report['output']}"
        if not report["clean"]:
            what = "the tests left processes behind, or they or the reward were changed meanwhile"
            return 0.0, f"{what}: {report['output']}"
        read = [_number(text) for text in report["read"].values()]
        return min(read, default=0.0), str(report["output"])

    def _call(
        self,
        script: list[str],
        added: list[Entry],
        env: dict[str, str],
        seconds: float,
        *,
        keep: bool,
    ) -> tuple[dict[str, Any] | None, RunResult]:
        disk = self._limits.disk_mb * MIB
        asked = self.layout.asked.environment
        memory = int(min(asked.memory_mb, self._limits.memory_mb))
        limits = Limits(
            wall_s=seconds + _SPARE_S,
            cpu_s=seconds + _SPARE_S,
            memory_bytes=max(memory, 64) * MIB + 4 * disk,
            processes=int(max(min(asked.pids, self._limits.processes), 8)),
            output_bytes=2 * disk + 8 * self._limits.shown,
            file_bytes=disk,
        )
        given = {
            "tree": self._tree,
            "added": added,
            "script": script,
            "cwd": self.layout.workdir,
            "env": {"HOME": HOME, "LANG": "C.UTF-8", "PATH": _PATH, "TERM": "dumb", **env},
            "seconds": seconds,
            "shown": self._limits.shown,
            "read": [] if keep else _REWARDS,
            "leave": self._leave,
            "keep": keep,
        }
        result = self._run(_PROGRAM, json.dumps(given), limits)
        try:
            report = json.loads(result.stdout) if result.ok else None
        except ValueError:
            report = None
        return (report if isinstance(report, dict) else None), result

    def _entry(self, given: Any) -> Entry | None:
        """Return an entry of a tree as it may be laid out again; None for one in a forbidden place."""
        path, mode, kind, content = given
        if normpath(path) != path or f"{path}/".startswith(tuple(f"{one}/" for one in self._leave)):
            return None
        return path, mode & 0o777, kind, content


def _number(text: str) -> float:
    """Read a reward as Harbor's verifiers write it: a number, or JSON of numbers by name, of which `reward` or else the mean counts."""
    try:
        value = written(text)
        if isinstance(value, dict):
            value = value["reward"] if "reward" in value else fmean(map(number, value.values()))
        return number(value)
    except (ValueError, RecursionError):
        return 0.0
