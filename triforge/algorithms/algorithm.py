"""The resolved `[algorithm]` section: it is what travels to workers and learners, and what `credit` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import SerializeAsAny, ValidationInfo, field_validator

from triforge.algorithms.advantages import COMPARED, Rows, ScoredRows
from triforge.algorithms.core import READS_LOSS, VOTES_TRAIN, CoreOptions
from triforge.algorithms.estimators import ESTIMATORS, Estimator, Group
from triforge.algorithms.jobs import JOBS, Job
from triforge.algorithms.judge_targets import JUDGE_TARGETS, Judged, JudgeTarget, demand_aligned
from triforge.algorithms.losses import LOSSES, Loss, TokenLoss, Tokens
from triforge.algorithms.off_policy import Correction, Mode
from triforge.algorithms.presets import preset_of
from triforge.algorithms.registry import NoOptions, Only, Options, Registry
from triforge.errors import ConfigError

_CAPS = {"token": 2.0, "sequence": 5.0, "geometric": 2.0}
# of what trains the policy
_FILTERS = ("policy_band", "mixed_groups_only", "group_filter", "refills")
_PARTS: dict[str, Registry[Estimator] | Registry[Loss] | Registry[JudgeTarget] | Registry[Job]] = {
    "estimator": ESTIMATORS,
    "loss": LOSSES,
    "judge_target": JUDGE_TARGETS,
    "job": JOBS,
}
_BANDS = {"token": (0.5, 2.0), "sequence": (0.5, 2.0), "geometric": (0.99, 1.01)}


class Algorithm(CoreOptions):
    """The core options, and those of the chosen estimator, loss, judge_target and job, each a model of its part's own."""

    estimator_options: SerializeAsAny[Options] = NoOptions()
    loss_options: SerializeAsAny[Options] = NoOptions()
    judge_target_options: SerializeAsAny[Options] = NoOptions()
    job_options: SerializeAsAny[Options] = NoOptions()

    @field_validator(*(f"{part}_options" for part in _PARTS), mode="before")
    @classmethod
    def _typed(cls, given: Any, info: ValidationInfo) -> Any:
        """Read a part's options from JSON."""
        if isinstance(given, Options):
            return given
        what = (info.field_name or "").removesuffix("_options")
        part = _PARTS[what].find(info.data[what])
        return part.options.model_validate_json(json.dumps(given))

    @property
    def estimator_part(self) -> Estimator:
        """The chosen estimator."""
        return ESTIMATORS.find(self.estimator)

    def estimate(self, group: Group) -> ScoredRows:
        """Advantages of a group's steps by the chosen estimator."""
        return self.estimator_part.function(group, self, self.estimator_options)

    @property
    def needs_critic(self) -> bool:
        """Whether advantages are estimated on the values of a critic."""
        return self.estimator_part.tokens is not None

    def estimator_reads(self, option: str) -> bool:
        """Whether the chosen estimator reads a core option of comparison; what is imitated is not estimated."""
        reads = self.estimator_part.reads
        return not self.imitates and option in (
            COMPARED[self.normalise] if reads is None else reads
        )

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Return the chosen loss of some tokens."""
        return LOSSES.find(self.loss).function(tokens, self.loss_options)

    def targets(self, judged: Judged) -> Rows:
        """Return the reward of a vote of +1 on each step by the chosen `judge_target`; None where it is unknown."""
        part = JUDGE_TARGETS.find(self.judge_target)
        found = part.function(judged, self, self.judge_target_options)
        return demand_aligned(part.name, judged, found)

    @property
    def value_clip(self) -> float | None:
        """How far a value of the critic may move in a step; None sets no limit."""
        clip: float | None = getattr(self.estimator_options, "value_clip", None)
        return clip

    def of_reward_model(self) -> Self:
        """As the reward model's learner reads it: its votes have advantages already, whatever trains the policy."""
        return self.changed(job="pg", kl_placement="loss", estimator="step_index", whiten=False)

    def of_job(self, job: str) -> Self:
        """Return the algorithm as a learner with that job reads it."""
        return self.changed(job=job, **JOBS.find(job).fixes)

    def correction(self, staleness_bound: int) -> Correction:
        """Return the off-policy correction in force, with `auto` and dependent defaults resolved.

        Imitation needs no correction.
        """
        automatic: Mode = "tis" if staleness_bound > 0 and self.job_part.corrects else "none"
        return Correction(
            mode=automatic if self.off_policy == "auto" else self.off_policy,
            level=self.off_policy_level,
            cap=self.off_policy_cap or _CAPS[self.off_policy_level],
            band=self.off_policy_band or _BANDS[self.off_policy_level],
            veto=self.off_policy_veto,
        )

    @property
    def described(self) -> str:
        """One line: the preset, the parts that it is made of, and each option that is not the preset's own."""
        preset = resolve(self.name)
        own, used = dict(preset.flat()), dict(self.flat())
        for part in self.own_options:  # of a part that the preset has not
            own = dict(type(part)()) | own
        votes = "votes" if self.use_votes else "no votes"
        parts = f"estimator {self.estimator}, normalise {self.normalise}, loss {self.loss}, {votes}"
        kept = {name: getattr(self, name) for name in _FILTERS}
        filters = ", ".join(f"{n} {v}" for n, v in kept.items() if v not in (None, "none", False))
        changes = ", ".join(f"{n} = {v}" for n, v in used.items() if own.get(n, ...) != v)
        differs = f"; other than in the preset: {changes}" if changes else ""
        return f"{self.name}: {parts}, {filters or 'no filter'}{differs}"

    def flat(self) -> Iterator[tuple[str, Any]]:
        """Every option by name: those of the core and of the parts."""
        yield from ((name, getattr(self, name)) for name in CoreOptions.model_fields)
        for options in self.own_options:
            yield from options

    @property
    def own_options(self) -> list[Options]:
        """The options of each part."""
        return [getattr(self, f"{what}_options") for what in _PARTS]

    def changed(self, **options: Any) -> Self:
        """With other core options; another part has the defaults of its own."""
        for what, known in _PARTS.items():
            if options.get(what, getattr(self, what)) != getattr(self, what):
                options[f"{what}_options"] = known.find(options[what]).options()
        return self.model_copy(update=options)

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:
        """Yield the conflicts of the core, of the parts, and between them."""
        estimator, critic = self.estimator_part, self.needs_critic
        yield (
            self.vote_weight == "trust" and not (estimator.splits or estimator.reads_votes),
            f"vote_weight: given trust with estimator = '{self.estimator}', allowed 'step_index', 'group' or 'within': the others "
            "have no part of the votes that could be weighed apart",
        )
        yield (
            estimator.reads_votes and not (self.use_outcome and self.use_votes),
            f"estimator: given '{self.estimator}' with use_outcome or use_votes = false, allowed only with both: it reads "
            "outcomes and votes, and nothing else",
        )
        yield (
            estimator.reads_votes and self.penalises,
            f"estimator: given '{self.estimator}' with a penalty, allowed only without: outcomes and votes are read apart, "
            "and no part would hold it",
        )
        filters = [n for n in _FILTERS if getattr(self, n) not in (None, "none", False)]
        yield (
            estimator.siblings and (self.needs_votes or bool(filters)),
            f"estimator: given '{self.estimator}' with {', '.join(filters) or 'votes'}, allowed without: the candidates of a tree "
            "share one outcome, and no judge reads a candidate as a step of a trajectory",
        )
        yield (
            self.normalise == "raw" and not (self.whiten or critic),
            "normalise: given 'raw' with whiten = false, allowed only with whiten = true or a critic: without any baseline "
            "every failure-free batch would be reinforced whole",
        )
        yield (
            LOSSES.find(self.loss).by_response and (critic or self.charged),
            f"loss: given '{self.loss}' with estimator = '{self.estimator}' and kl_placement = '{self.kl_placement}', "
            "allowed 'gspo_token': the tokens of a response have advantages of their own",
        )
        batch = self.whiten and self.normalise in ("raw", "mean")
        yield (
            self.charged and (self.imitates or not (critic or batch)),
            f"kl_placement: given 'reward' with whiten = {self.whiten}, normalise = '{self.normalise}' and job = "
            f"'{self.job}', allowed only with true, 'raw' or 'mean', and 'pg': it needs a reward a token, and whatever "
            "compares whole groups has none",
        )
        yield from super().conflicts(algorithm)
        for options in self.own_options:
            yield from options.conflicts(algorithm)


def resolve(name: str, overrides: Mapping[str, Any] | None = None) -> Algorithm:
    """Return the named preset with some options changed.

    Args:
        overrides: option to value, of the core or of the chosen estimator, loss, judge_target or job. "none" is no limit (TOML has
            no null).

    Raises:
        ConfigError: the name, an option or a value is unknown, the combination is impossible, or nothing reads an option.
    """
    brought, given = preset_of(name), dict(overrides or {})
    if given.get("name") == name:
        del given["name"]
    merged = {**brought, **given}
    core = {k: v for k, v in merged.items() if k in CoreOptions.model_fields and k != "name"}
    plain = CoreOptions.checked(_absent(CoreOptions, core))
    kinds = {what: known.find(getattr(plain, what)).options for what, known in _PARTS.items()}
    for option, value in given.items():
        if option not in core and not any(option in k.model_fields for k in kinds.values()):
            raise ConfigError(_unread(option, value, name, plain))
    typed = {
        f"{what}_options": kind.checked(
            _absent(kind, {k: v for k, v in merged.items() if k in kind.model_fields})
        )
        for what, kind in kinds.items()
    }
    found = Algorithm(**{**dict(plain), "name": name, **typed})
    for impossible, sentence in found.conflicts(found):
        if impossible:
            raise ConfigError(sentence)
    _demand_read(plain, found, brought, given)
    _demand_read(found.estimator_options, found, brought, given)
    _demand_read(found.loss_options, found, brought, given, READS_LOSS)
    _demand_read(found.judge_target_options, found, brought, given, VOTES_TRAIN)
    _demand_read(found.job_options, found, brought, given)
    return found


def _absent(kind: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the word "none" by None for options that allow it."""
    return {
        k: None if v == "none" and "None" in str(kind.model_fields[k].annotation) else v
        for k, v in given.items()
    }


def _demand_read(
    options: Options,
    found: Algorithm,
    brought: Mapping[str, Any],
    given: Mapping[str, Any],
    *whole: Only,
) -> None:
    """Reject options that the chosen parts ignore, unless they have the preset's value or the default.

    `whole` are conditions of all these options, in addition to those of each.
    """
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if name not in given or value in (brought.get(name, field.default), field.default):
            continue
        for only in (*whole, *field.metadata):
            if isinstance(only, Only) and not only.read(found):
                raise ConfigError(f"{name}: given {value!r}, allowed only with {only.needs}")


def _unread(option: str, value: Any, preset: str, core: CoreOptions) -> str:
    """Why an option that no chosen part declares is refused."""
    for what, known in _PARTS.items():
        readers = [repr(n) for n in known.names() if option in known.find(n).options.model_fields]
        if readers:
            return (
                f"{option}: given {value!r} with {what} = '{getattr(core, what)}', allowed only with {what} = "
                f"{' or '.join(readers)}: nothing else reads it"
            )
    options = sorted(n for n in CoreOptions.model_fields if n != "name")
    return f"preset {preset}: given unknown option {option!r}, allowed {options} and those of its estimator, loss, judge_target and job"
