"""`[models]`: the models of a run, and how each is sampled."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from triforge.config.base import ROLE_NAME, Cards, Conflicts, Regex, Sampling, Section, Tokens
from triforge.config.training import TrainerSection


class ModelSection(Section):
    """One model role: which folder, and how it is sampled."""

    path: str = ""
    """Model folder (config, tokenizer, safetensors)."""
    temperature: float = Field(1.0, ge=0.0, le=5.0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Nucleus; 1 keeps the full softmax."""
    max_new_tokens: Tokens = 64
    """Tokens a response may have."""
    stop: tuple[str, ...] = ()
    """Stop strings in addition to the model's own."""
    regex: Regex | None = None
    """Expression that every response has to match, of at most 10,000 positions with its repetitions written out."""
    engines_of: str = ""
    """Another trained model whose engines serve this one, too: both as adapters (`lora_rank`) over one base, their `path`."""
    gpus: Cards = ()
    """Numbers of the cards of its engines; none leaves them to the plan (`triforge plan`)."""
    replicas: int = Field(0, ge=0)
    """Engines that serve it; 0 leaves it to the plan."""
    tensor_parallel: int = Field(0, ge=0)
    """Cards of one engine; 0 leaves it to the plan."""

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """Return the section as `Sampling`; `greedy` sets temperature 0."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            stop=self.stop,
            regex=self.regex,
        )


_Agents = tuple[Annotated[str, Field(min_length=1, max_length=64)], ...]


class FurtherSection(ModelSection):
    """A further trained model, under a name of its own, that plays or judges some agents of the environment (docs/train.md).

    `[trainer.NAME]` is its learner, with the fields of `[trainer.policy]` and for one that plays `job`, an objective of its own
    in the place of `algorithm.job`; without that section it is trained as the policy is, or the reward model.
    """

    agents: _Agents = ()
    """Agents of the environment that it plays; the policy plays those that no model names."""
    judges: _Agents = ()
    """Agents whose steps it judges; the reward model judges those that no model names."""


class ModelsSection(Section):
    """The models: policy, reward and rewriter, and further ones that are trained. Each is served by a policy service of its own.

    The policy plays every agent that no other model names, the reward model judges every one that no other judges, the rewriter is
    not trained.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FurtherSection]
    policy: ModelSection = ModelSection()
    reward: ModelSection = ModelSection()
    rewriter: ModelSection = ModelSection(max_new_tokens=256)

    @property
    def players(self) -> dict[str, ModelSection]:
        """The models that play, by name; the policy first."""
        further = self.__pydantic_extra__.items()
        return {"policy": self.policy, **{name: model for name, model in further if model.agents}}

    @property
    def judging(self) -> dict[str, ModelSection]:
        """The models that judge, by name; the reward model first."""
        further = self.__pydantic_extra__.items()
        return {"reward": self.reward, **{name: model for name, model in further if model.judges}}

    @property
    def trainable(self) -> tuple[str, ...]:
        """The models that a run may train."""
        return ("policy", "reward", *self.__pydantic_extra__)

    @property
    def agents(self) -> dict[str, str]:
        """The model of each agent that the policy does not play."""
        return self._named("agents")

    @property
    def judges(self) -> dict[str, str]:
        """The judge of each agent that the reward model does not judge."""
        return self._named("judges")

    def _named(self, what: Literal["agents", "judges"]) -> dict[str, str]:
        further = self.__pydantic_extra__.items()
        return {agent: name for name, model in further for agent in getattr(model, what)}

    @model_validator(mode="after")
    def _play_agents(self) -> ModelsSection:
        for name, model in self.__pydantic_extra__.items():
            if bool(model.agents) is bool(model.judges):
                raise ValueError(
                    f"{name}: unknown model; allowed are {', '.join(type(self).model_fields)}, and others that name the agents "
                    f"they play (models.{name}.agents) or those they judge (models.{name}.judges), and not both"
                )
            taken = (*TrainerSection.model_fields, "model")  # TRIFORGE_MODEL_ENGINES is of all
            if name in taken or not re.fullmatch(ROLE_NAME, name):
                raise ValueError(
                    f"{name}: no name for a model, expected at most 16 small letters and digits, a letter first, and none of "
                    "'critic' and 'model'"
                )
            for what, done in (("agents", "played"), ("judges", "judged")):
                named: dict[str, str] = getattr(self, what)
                for agent in getattr(model, what):
                    if named[agent] != name:
                        raise ValueError(f"{name}.{what}: {agent!r} is {done} by another model")
        return self

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse sampling that cannot be trained on, and parts that read the samples of policy and reward model alone."""
        for role, model in (self.players | self.judging).items():
            yield (
                model.top_p < 1.0,
                f"models.{role}.top_p: given {model.top_p}, allowed 1.0: the trainer recomputes log-probabilities over the full "
                "softmax, a cut nucleus would make every ratio wrong",
            )
            yield (
                model.temperature == 0.0,
                f"models.{role}.temperature: given 0, expected above 0: greedy samples of one prompt are identical, so no "
                "advantage is left to learn from",
            )
        yield from self._served_by_others(config)
        sessions = config.env_adapter.by_agents
        for name in list(self.judging)[1:]:
            yield (
                sessions or not config.reward.chosen.by_agent,
                f"models.{name}.judges: given with reward.kind = {config.reward.kind!r} and env_adapter.played_by = "
                f"{config.env_adapter.played_by!r}, allowed only with 'votes' and 'workers': other step scores ask no model of an "
                "agent's own",
            )
        for name in list(self.players)[1:]:
            for what, given in {
                f"env_adapter.played_by = {config.env_adapter.played_by!r}": sessions,
                f"reward.kind = {config.reward.kind!r}": config.reward.chosen.one_player,
                "a critic (algorithm.overrides.estimator)": config.algorithm.resolved.needs_critic,
            }.items():
                yield (
                    given,
                    f"models.{name}: given with {what}, which takes the policy for the only model that plays",
                )

    def _served_by_others(self, config: Any) -> Conflicts:
        served = self.players | self.judging
        for name, model in (served | {"rewriter": self.rewriter}).items():
            owner = served.get(model.engines_of)
            ranks = [config.learner(role).lora_rank for role in (name, model.engines_of)]
            fits = (
                owner and owner is not model and not owner.engines_of and owner.path == model.path
            )
            trained = fits and name in config.trained and model.engines_of in config.trained
            yield (
                bool(model.engines_of) and not (trained and all(ranks) and not config.run.colocate),
                f"models.{name}.engines_of: given {model.engines_of!r}, expected another trained model with engines of its own "
                "and the same path, both with lora_rank above 0, and run.colocate = false: engines serve several models only as "
                "adapters over one base",
            )
