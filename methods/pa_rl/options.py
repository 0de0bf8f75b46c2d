"""The section `[methods.pa_rl]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from methods.pa_rl.critic import CriticOptions
from triforge.algorithms.registry import Only
from triforge.config import RunConfig
from triforge.config.base import Conflicts, Positive
from triforge.config.methods import MethodOptions


class PaRlOptions(MethodOptions, CriticOptions):
    """Critics Q(state, action) that learn from replay (Cal-QL) after each step's rollouts, and select responses."""

    candidates: int = Field(8, ge=2, le=64)
    """Responses sampled a turn, from which the critic selects."""
    edits: int = Field(0, ge=0, le=64)
    """Times that the tail of the selected response is sampled again; a tail that the critic values more is taken."""
    updates: Positive = 64
    """Updates a training step."""
    offline_run: str = Field("", pattern=r"^[\w-]*$", max_length=200)
    """A run of this deployment whose recorded steps are the offline partition; empty has none."""
    offline_updates: Annotated[
        Positive,
        Only(lambda s: bool(s.offline_run), "an offline_run: there is no other offline partition"),
    ] = 256
    """Updates on that partition alone before the first step, in whose rollouts the critic selects already."""
    capacity: Positive = 10_000
    """Transitions kept of either partition, the latest ones."""

    @property
    def runs_read(self) -> Mapping[str, str]:
        """The offline run."""
        return {"offline_run": self.offline_run} if self.offline_run else {}

    @property
    def needs_policy(self) -> str:
        """Return the method, whose critic selects the responses of the policy."""
        return "methods.pa_rl"

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse a critic that no strategy reads, and edits of responses that have to match an expression."""
        section = config.env_adapter
        yield (
            section.chosen.draws_policy and bool(self.changed),
            f"methods.pa_rl: given {', '.join(self.changed)} with env_adapter.strategy = {section.strategy!r}, allowed only with "
            "'pa_rl': no other strategy reads a critic",
        )
        held = section.admissible_only or any(m.regex for m in config.models.players.values())
        yield (
            self.edits > 0 and held,
            f"methods.pa_rl.edits: given {self.edits} with env_adapter.admissible_only or models.NAME.regex, allowed 0: an "
            "expression holds from a response's first token on, and not for a tail",
        )
