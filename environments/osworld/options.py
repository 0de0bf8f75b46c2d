"""OSWorld's task JSON, and the machines."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue, model_validator

from environments.gui.episode import ScreenOptions
from environments.gui.evaluators import Evaluator, Spec
from environments.gui.rewriting import ScreenTask, Variant
from triforge.environments.kit import Strict

SETUP = ("command", "download", "execute", "launch", "open", "sleep", "upload_file")
RESULTS = {
    "cloud_file": "path", "rule": "rules", "vm_command_error": "command",
    "vm_command_line": "command", "vm_file": "path",
}  # fmt: skip
"""Values of an evaluator, each with the field that it needs."""


class SetupStep(Strict):
    """A step on the machine; `upload_file` is an addition of ours with the fields `path` and `content`."""

    type: str
    parameters: Spec = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> SetupStep:
        if self.type not in SETUP:
            raise ValueError(f"type: given {self.type!r}, expected one of {', '.join(SETUP)}")
        return self


def _expect_askable(name: str, spec: Spec) -> None:
    kind = spec.get("type")
    if not isinstance(kind, str) or kind not in RESULTS:
        raise ValueError(f"{name}: given type {kind!r}, expected one of {', '.join(RESULTS)}")
    if not spec.get(RESULTS[kind]):
        raise ValueError(f"{name}: {kind} needs {RESULTS[kind]!r}")


class MachineEvaluator(Evaluator):
    """OSWorld's evaluator; the steps of `postconfig` run after the agent's last action."""

    postconfig: list[SetupStep] = Field(default_factory=list)
    options: Spec | list[Spec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _supported(self) -> MachineEvaluator:
        given = self.options if isinstance(self.options, list) else [self.options]
        if any(given):
            raise ValueError("options of a function are not supported")
        for name, specs in (("result", self.result), ("expected", self.expected)):
            for spec in specs if isinstance(specs, list) else [specs]:
                if spec or not self.infeasible:
                    _expect_askable(name, spec)
        return self


class MachineVariant(Variant):
    """A variant of a task on a machine."""

    evaluator: MachineEvaluator


class OsworldTask(ScreenTask):
    """A file of OSWorld's `evaluation_examples`, and our `horizon`, `hint`, `variants`. The fields from `snapshot` on are ignored."""

    id: str = Field(min_length=1, max_length=200)
    config: list[SetupStep] = Field(default_factory=list)
    evaluator: MachineEvaluator
    variants: Sequence[MachineVariant] = Field(default=(), max_length=16)
    horizon: int = Field(default=30, ge=1, le=500)
    snapshot: str = ""
    source: JsonValue = None
    trajectory: str = ""
    related_apps: list[str] = Field(default_factory=list)
    proxy: bool = False
    fixed_ip: bool = False
    possibility_of_env_change: str = ""


class Docker(Strict):
    """A fresh container for each episode, removed after it, at most `at_most` at a time in one worker.

    `arguments` of `docker run` stand before the image: devices, volumes with the disk image, memory; `port` is the control
    server's port inside the container.
    """

    image: str = Field(min_length=1)
    arguments: list[str] = Field(default_factory=list)
    port: int = Field(default=5000, ge=1, le=65535)
    at_most: int = Field(default=1, ge=1, le=256)


class PlayOptions(ScreenOptions):
    """Options of a run: machines (`docker` or `machines`, not both), and others; README.md explains each."""

    docker: Docker | None = None
    machines: list[str] = Field(default_factory=list)
    start_s: float = Field(default=300.0, gt=0.0, le=3600.0)
    call_s: float = Field(default=120.0, gt=0.0, le=600.0)
    pause_s: float = Field(default=2.0, ge=0.0, le=60.0)
    verify_s: float = Field(default=0.0, ge=0.0, le=120.0)

    @model_validator(mode="after")
    def _one_provider(self) -> PlayOptions:
        if (self.docker is None) == (not self.machines):
            raise ValueError("expected either docker = {image = ...} or machines = [URL, ...]")
        if bad := [u for u in self.machines if not u.startswith(("http://", "https://"))]:
            raise ValueError(
                f"machines: given {bad[0]!r}, expected an address such as http://host:5000"
            )
        return self
