"""Fields of a run's document that are turned although nothing reads them: somebody believes that they do something.

A field that says what is its default anyway is let pass. So is a whole section whose model is not trained
(`trainer.reward` without a reward model): what decides that is a preset, and presets are exchanged with the rest of the
document left as it is. Options of the algorithm itself: `triforge.algorithms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from triforge.config.auxiliary import AuxiliarySection
from triforge.config.base import Section
from triforge.config.learner import LearnerSection
from triforge.config.reporting import ReportSection

if TYPE_CHECKING:
    from triforge.config.sections import RunConfig


class Unread(NamedTuple):
    """Fields that a combination does not read, what it is, what would read them, and why it does not."""

    options: tuple[str, ...]
    holds: bool
    given: str
    allowed: str
    why: str


def unread(config: RunConfig) -> str | None:
    """The sentence that refuses the first field that nothing reads, or None."""
    trainer = config.trainer
    checked: tuple[tuple[str, Section, tuple[Unread, ...]], ...] = (
        ("trainer.policy", trainer.policy, _learner_rules(trainer.policy)),
        ("trainer.reward", trainer.reward, _learner_rules(trainer.reward)),
        ("trainer.critic", trainer.critic, _critic_rules(config)),
        ("trainer.aux", trainer.aux, _auxiliary_rules(trainer.aux)),
        ("report", config.report, _report_rules(config.report)),
    )
    for path, section, rules in checked:
        for rule in rules:
            for option in turned(section, rule.options) if rule.holds else ():
                given = getattr(section, option)
                return f"{path}.{option}: given {given!r} with {rule.given}, allowed only with {rule.allowed}: {rule.why}"
    return None


def turned(section: Section, fields: tuple[str, ...]) -> list[str]:
    """Those of the fields that are not what they are by default."""
    usual = type(section)()
    return [name for name in fields if getattr(section, name) != getattr(usual, name)]


def _learner_rules(learner: LearnerSection) -> tuple[Unread, ...]:
    return (
        Unread(
            ("lora_alpha", "lora_targets"), learner.lora_rank == 0,
            "lora_rank = 0", "lora_rank above 0", "no adapter is trained",
        ),
        Unread(
            ("schedule_updates", "final_share"), learner.schedule == "constant",
            "schedule = 'constant'", "'linear' or 'cosine'", "the step size does not fall",
        ),
    )  # fmt: skip


def _critic_rules(config: RunConfig) -> tuple[Unread, ...]:
    return (
        Unread(
            ("alone_steps",), config.algorithm.resolved().job == "critic",
            "algorithm.overrides.job = 'critic'", "'pg'", "all steps train the critic alone",
        ),
    )  # fmt: skip


def _auxiliary_rules(aux: AuxiliarySection) -> tuple[Unread, ...]:
    weights = aux.sp.lambda0 > 0 or aux.id.lambda0 > 0
    named = tuple(name for name in type(aux).model_fields if name not in ("sp", "id", "measure"))
    return (
        Unread(
            named, not aux.wanted,
            "sp.lambda0 = 0, id.lambda0 = 0 and measure = false", "a weight above 0 or measure = true",
            "no transition is looked at",
        ),
        Unread(
            ("schedule", "t_max", "loss", "measure_gradients"), not weights,
            "sp.lambda0 = 0 and id.lambda0 = 0", "a weight above 0", "nothing is added to the policy's gradient",
        ),
        Unread(
            ("layout",), not aux.wants("sp"),
            "sp.lambda0 = 0", "sp.lambda0 above 0 or measure = true", "nothing else stands in a played sequence",
        ),
        Unread(
            ("prompt",), aux.layout == "in_sequence" and not aux.wants("id"),
            "layout = 'in_sequence' and id.lambda0 = 0", "'separate', id.lambda0 above 0 or measure = true",
            "no item is written",
        ),
    )  # fmt: skip


def _report_rules(report: ReportSection) -> tuple[Unread, ...]:
    return (
        Unread(
            ("wandb_entity", "wandb_mode"), not report.wandb_project,
            "wandb_project = ''", "a project", "Weights & Biases is told nothing",
        ),
    )  # fmt: skip
