"""One frozen document for a run, one section a room, and the addresses of a deployment.

A run is described by TOML (`load`), by JSON in `POST /v1/runs`, or by both: overrides are laid over the deployment's
own document. Secrets and addresses come from the environment only (`Settings.from_env`), never from the document.
Times are seconds, sizes are tokens or bytes, as the names say.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from triforge.algorithms.presets import Preset, resolve
from triforge.errors import ConfigError
from triforge.messages import Params, Sampling

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Tokens = Annotated[int, Field(ge=1, le=131072)]


def _address(url: str) -> str:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        good = False
    if not good:
        raise ValueError("expected http://host:port or https://host:port")
    return url.rstrip("/")


Url = Annotated[str, AfterValidator(_address)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown fields refused, every number finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSection(Section):
    """What is run and for how long."""

    name: str = Field(default="run", description="Name shown to people.")
    seed: int = Field(
        default=1, ge=0, le=2**32 - 1, description="Seed of everything that is drawn."
    )
    steps: int = Field(
        default=30, ge=1, description="Training steps; each trains both models once."
    )
    groups_per_step: Positive = Field(default=16, description="Task versions played a step.")
    staleness_bound: int = Field(
        default=0,
        ge=0,
        description="Steps a trained sample may lag behind the learner; 0 is synchronous.",
    )
    eval_every: int = Field(
        default=10, ge=0, description="Steps between evaluations; 0 never evaluates."
    )
    eval_tasks: int = Field(default=64, ge=0, description="Held-out tasks an evaluation plays.")
    eval_greedy: bool = Field(default=True, description="Evaluate greedily as well as sampled.")
    keep_checkpoints: Positive = Field(default=3, description="Weight versions kept a model.")
    step_deadline_s: Seconds = Field(
        default=1800.0, description="A step that gathers for longer fails the run with the reason."
    )


class ModelSection(Section):
    """One model role: which folder, and how it is sampled."""

    path: str = Field(default="", description="Model folder (config, tokenizer, safetensors).")
    temperature: float = Field(default=1.0, ge=0.0, le=5.0, description="Sampling temperature.")
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Nucleus; 1 keeps the full softmax."
    )
    max_new_tokens: Tokens = Field(default=64, description="Tokens a response may have.")
    stop: tuple[str, ...] = Field(default=(), description="Stop strings beside the model's own.")

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The section as `Sampling`; `greedy` sets temperature 0."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            stop=self.stop,
        )


class ModelsSection(Section):
    """The three roles: one acts, one judges, one rewrites. Every model is served by the policy room."""

    acts: ModelSection = ModelSection()
    judges: ModelSection = ModelSection()
    rewrites: ModelSection = ModelSection(max_new_tokens=256)


class EnvAdapterSection(Section):
    """How episodes are played."""

    rollouts: Annotated[int, Field(ge=2, le=256)] = Field(
        default=8, description="K: rollouts of one task version, compared with each other."
    )
    max_steps: Positive = Field(
        default=14, description="Steps after which an episode is a failure."
    )
    options: Params = Field(
        default_factory=dict,
        description="Options of the environment family (wording, action format).",
    )
    episode_deadline_s: Seconds = Field(
        default=300.0, description="An episode that takes longer is an infrastructure failure."
    )
    episode_retries: int = Field(
        default=2, ge=0, description="Fresh tries after an infrastructure failure."
    )
    concurrency: Positive = Field(default=64, description="Episodes in flight in one worker.")


class AdaptationSection(Section):
    """How tasks are rewritten."""

    controller: Literal["llm_rewrite", "none"] = Field(
        default="llm_rewrite", description="`none` leaves every task as it is."
    )
    max_pending: int = Field(default=2, ge=0, description="Proposals measured at the same time.")
    max_proposals: int = Field(
        default=0, ge=0, description="Proposals of the whole run; 0 is no limit."
    )
    candidates: Annotated[int, Field(ge=1, le=16)] = Field(
        default=3,
        description="Answers asked of the rewriter; the first that passes all checks is measured.",
    )
    max_rollouts: Annotated[int, Field(ge=8)] = Field(
        default=64,
        description="Fresh rollouts of parent and of candidate, each, before the verdict.",
    )
    critic_tokens: Positive = Field(default=48, description="Tokens of a critic's summary.")
    notes: Positive = Field(default=2, description="Trajectories the critic reads a proposal.")
    null_control: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.0,
        description="Share of proposals whose candidate is the unchanged parent: measures false acceptance.",
    )


class RewardSection(Section):
    """How steps are judged."""

    votes: Annotated[int, Field(ge=1, le=64)] = Field(default=3, description="m: votes a step.")
    prompt: Literal["rubric", "terse"] = Field(
        default="rubric", description="`terse` suits models with a small closed vocabulary."
    )
    deadline_s: Seconds = Field(
        default=300.0, description="A judge errand that takes longer fails."
    )


class LearnerSection(Section):
    """One learner's optimiser. The defaults are the published ones."""

    learning_rate: float = Field(default=1e-6, gt=0, description="AdamW's step size, constant.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    updates_per_step: Positive = Field(default=4, description="Optimiser updates a training step.")
    epochs: Positive = Field(default=1, description="Passes over the step's rows.")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    token_budget: Positive = Field(
        default=8192, description="Padded tokens a forward pass may hold."
    )
    max_tokens: Positive = Field(default=32768, description="Longer rows are not trained on.")
    max_rows: int = Field(default=0, ge=0, description="Rows drawn a step; 0 trains on all.")
    max_bad_updates: Positive = Field(
        default=3, description="Non-finite updates skipped in a row before the run stops."
    )


class TrainerSection(Section):
    """The two learners."""

    policy: LearnerSection = LearnerSection()
    reward: LearnerSection = LearnerSection()


class AlgorithmSection(Section):
    """Which preset, and which of its knobs are turned."""

    preset: str = Field(default="rlanything", description="Name of a preset.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Fields of the preset to change, by name."
    )

    def resolved(self) -> Preset:
        """The preset with its overrides applied."""
        return resolve(self.preset, self.overrides)


class RunConfig(Section):
    """The whole document."""

    run: RunSection = RunSection()
    models: ModelsSection = ModelsSection()
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    adaptation: AdaptationSection = AdaptationSection()
    reward: RewardSection = RewardSection()
    trainer: TrainerSection = TrainerSection()
    algorithm: AlgorithmSection = AlgorithmSection()

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        try:
            self.algorithm.resolved()
        except ConfigError as error:
            part = "" if error.detail.startswith("preset") else "overrides."
            raise ValueError(f"algorithm.{part}{error.detail}") from None
        if self.run.staleness_bound > 0:
            raise ValueError(
                f"run.staleness_bound: given {self.run.staleness_bound}, allowed 0: a bound above 0 needs an off-policy "
                "correction, which no preset of this version has"
            )
        if self.adaptation.max_rollouts < self.env_adapter.rollouts:
            raise ValueError(
                f"adaptation.max_rollouts: given {self.adaptation.max_rollouts}, expected at least "
                f"env_adapter.rollouts = {self.env_adapter.rollouts}: a proposal is measured in whole groups"
            )
        for role, model in (("acts", self.models.acts), ("judges", self.models.judges)):
            if model.top_p < 1.0:
                raise ValueError(
                    f"models.{role}.top_p: given {model.top_p}, allowed 1.0: the trainer recomputes log-probabilities "
                    "over the full softmax, a cut nucleus would make every ratio wrong"
                )
            if model.temperature == 0.0:
                raise ValueError(
                    f"models.{role}.temperature: given 0, expected above 0: greedy samples of one prompt are "
                    "identical, so no advantage is left to learn from"
                )
        return self


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`, section by section; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """One field as an override: `run.steps=5` becomes `{"run": {"steps": 5}}`. The value is JSON, else a string.

    Raises:
        ConfigError: there is no `=`, or nothing before it.
    """
    path, found, given = text.partition("=")
    if not found or not path:
        raise ConfigError(f"override: given {text!r}, expected section.field=value")
    try:
        value: Any = json.loads(given)
    except ValueError:
        value = given
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


def parse(document: Mapping[str, Any]) -> RunConfig:
    """Check a document.

    Raises:
        ConfigError: one sentence a problem: the field, what was given, what is allowed.
    """
    try:
        return RunConfig.model_validate(dict(document))
    except ValidationError as error:
        problems = tuple(_sentence(item, RunConfig) for item in error.errors())
        raise ConfigError("; ".join(problems), problems=problems) from None


def _sentence(item: Mapping[str, Any], root: type[BaseModel], *, variable: bool = False) -> str:
    def name(*path: str | int) -> str:
        return f"TRIFORGE_{str(path[0]).upper()}" if variable else ".".join(map(str, path))

    where, reason = item["loc"], str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return reason
    if item["type"] == "extra_forbidden":
        section: Any = root
        for part in where[:-1]:
            section = section.model_fields[part].annotation
        return f"{name(*where)}: unknown field; allowed are {', '.join(map(name, section.model_fields))}"
    return f"{name(*where)}: given {item['input']!r}: {reason}"


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML document and lay `overrides` over it.

    Raises:
        ConfigError: the file is missing, is not TOML, or describes something impossible.
    """
    return parse(merge(read_document(path), overrides or {}))


def read_document(path: str | Path) -> dict[str, Any]:
    """Read a TOML document without checking its fields."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"config file {path}: not found") from None
    except OSError as error:
        raise ConfigError(f"config file {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # broken TOML, or bytes that are no UTF-8
        raise ConfigError(f"config file {path}: not valid TOML: {error}") from None


class Settings(Section):
    """Addresses and secrets of a deployment, from environment variables named `TRIFORGE_<FIELD>`."""

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="Valkey or Redis.")
    database_url: str = Field(
        default="sqlite:///var/triforge.sqlite", description="SQLAlchemy URL of the store."
    )
    artifacts_url: str = Field(
        default="var/artifacts", description="Folder or fsspec URL of the artifact store."
    )
    config: str = Field(default="", description="TOML document that runs start from.")
    host: str = Field(default="127.0.0.1", description="Address the doors listen on.")
    acts_url: Url = Field(default="http://127.0.0.1:8001", description="Policy room, role acts.")
    judges_url: Url = Field(
        default="http://127.0.0.1:8011", description="Policy room, role judges."
    )
    rewrites_url: Url = Field(
        default="http://127.0.0.1:8021",
        description="Policy room, role rewrites, or any OpenAI-compatible URL.",
    )
    reward_url: Url = Field(default="http://127.0.0.1:8002", description="Reward room.")
    env_adapter_url: Url = Field(default="http://127.0.0.1:8003", description="env_adapter room.")
    trainer_url: Url = Field(default="http://127.0.0.1:8004", description="Trainer room.")
    engines: str = Field(
        default="http://127.0.0.1:9001", description="Comma-separated engines of a policy room."
    )
    role: Literal["acts", "judges", "rewrites"] = Field(
        default="acts", description="Model role of a policy room."
    )
    model: str = Field(default="", description="Model folder that a policy room serves at start.")
    api_key: SecretStr = Field(default=SecretStr(""), description="Key that the engines ask for.")
    admin_api_key: SecretStr = Field(
        default=SecretStr(""), description="Key for the engines' weight and pause routes."
    )
    lease_s: Seconds = Field(
        default=10.0, description="Lease of an errand; renewed while a worker works."
    )
    resend_s: Seconds = Field(
        default=20.0, description="An errand that nobody started for so long is sent again."
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment.

        Raises:
            ConfigError: a `TRIFORGE_` variable is unknown or has an impossible value.
        """
        source = os.environ if environ is None else environ
        given = {
            name.removeprefix("TRIFORGE_").lower(): value
            for name, value in source.items()
            if name.startswith("TRIFORGE_") and value != ""
        }
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = tuple(_sentence(item, cls, variable=True) for item in error.errors())
            raise ConfigError("; ".join(problems), problems=problems) from None

    def environment(self) -> dict[str, str]:
        """The settings as environment variables for a child process."""
        pairs = {}
        for name, value in self:
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            if text:
                pairs[f"TRIFORGE_{name.upper()}"] = text
        return pairs
