"""`[machine]`: what a deployment on one machine starts, and on which cards."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from triforge.config.base import Conflicts, Section

EngineName = Literal["local", "sglang", "vllm"]


class MachineSection(Section):
    """The machine of `triforge train` and `triforge up`; read at their start alone, whatever a run says."""

    engine: Literal["auto", "local", "sglang", "vllm"] = "auto"
    """What serves the models: `auto` is SGLang where `gpus` is above 0, else the local engine."""
    gpus: int | None = Field(None, ge=0, le=64)
    """Cards that engines and learners divide; 0 is none of them, unset leaves them to each process."""

    @property
    def serving(self) -> EngineName:
        """The engine that serves the models."""
        if self.engine != "auto":
            return self.engine
        return "sglang" if self.gpus else "local"

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse cards that cannot be divided."""
        colocate = config.run.colocate
        yield (
            self.gpus == 1 and not colocate,
            "machine.gpus: given 1, expected run.colocate = true (--colocate), with which engines and learners have the card in "
            "turn, or 2 and more",
        )
        yield (
            bool(self.gpus and self.gpus > 1 and colocate),
            f"machine.gpus: given {self.gpus} with run.colocate = true, expected 1: that is for one card",
        )
