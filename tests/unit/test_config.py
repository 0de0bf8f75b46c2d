"""Every impossible config gives a sentence: the field, what was given, what is allowed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.config import (
    RunConfig,
    Settings,
    assignment,
    load,
    merge,
    parse,
    read_document,
    with_assignments,
)
from triforge.config.base import positions
from triforge.config.document import MOVED
from triforge.environments.trainable import demand_success
from triforge.errors import ConfigError


def at(path: str, value: Any) -> dict[str, Any]:
    """A document with one field."""
    document: Any = value
    for part in reversed(path.split(".")):
        document = {part: document}
    return dict(document)


# (field, impossible value, words that say what is allowed)
IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("run.steps", -1, "greater than or equal to 0"),
    ("run.steps", 2.5, "valid integer"),
    ("run.seed", 2**32, "less than or equal to 4294967295"),
    ("run.judge_staleness_bound", 1, "at most run.staleness_bound = 0"),
    ("run.min_measured", 9, "at most env_adapter.rollouts = 8"),
    ("run.late_groups", "discard", "'wait' or 'mask'"),
    ("run.step_deadline_s", float("inf"), "finite"),
    ("run", 5, "valid dictionary"),
    ("models.policy.temperature", 0, "above 0"),
    ("models.reward.temperature", 0, "above 0"),
    ("models.policy.top_p", 0.9, "allowed 1.0"),
    ("models.policy.stop", "text", "valid tuple"),
    ("models.policy.regex", "(a{1000}){1000}", "it has 1000000 positions, expected at most 10000"),
    ("models.reward.regex", "a{,9999999}", "9999999 positions"),
    ("env_adapter.rollouts", 1, "greater than or equal to 2"),
    ("adaptation.controller", "magic", "'llm_rewrite'"),
    ("reward.votes", 65, "less than or equal to 64"),
    ("trainer.policy.learning_rate", float("nan"), "finite"),
    ("algorithm.preset", "alphago", "allowed one of ['at_grpo', 'audited', "),
    ("algorithm.overrides.lam", 500, "allowed a number from 0 to 100"),
    ("algorithm.overrides.lam", 0, "allowed above 0"),
    ("algorithm.overrides.policy_band", [0.8, 0.2], "the low one first"),
    ("algorithm.overrides.alpha_low", 0.9, "alpha_low < alpha_high"),
]


@pytest.mark.parametrize(("field", "given", "allowed"), IMPOSSIBLE)
def test_impossible_value(field: str, given: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(at(field, given))
    [sentence] = caught.value.problems
    assert sentence.startswith(field)
    assert "given" in sentence
    numbers = given if isinstance(given, list) else [given]
    assert all(str(number) in sentence for number in numbers)
    assert allowed in sentence


def test_a_bound_above_zero_needs_a_correction_or_the_word_bypass() -> None:
    for mode, force in (("auto", "tis"), ("bypass", "bypass"), ("mis", "mis")):
        config = parse(at("run.staleness_bound", 2) | at("algorithm.overrides.off_policy", mode))
        assert config.correction.mode == force
    assert parse({}).correction.mode == "none"
    document = at("run.staleness_bound", 2) | at("algorithm.overrides.off_policy", "none")
    with pytest.raises(ConfigError, match=r"run.staleness_bound: given 2 .*off_policy = 'none'"):
        parse(document)


FROZEN = {"overrides": {"train_reward_model": False}}


LOG_RATIO = {"reward": {"kind": "log_ratio"}, "algorithm": FROZEN}
OTHER_JUDGE = {"policy": {"path": "p"}, "reward": {"path": "j"}}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            {"reward": {"kind": "shuffled"}},
            "reward.kind: given 'shuffled' with .*train_reward_model",
        ),
        (LOG_RATIO | at("models.policy.temperature", 0.8), "models.policy.temperature = 0.8"),
        (
            LOG_RATIO | {"models": OTHER_JUDGE},
            "models.reward.path = 'j', expected models.policy.path",
        ),
        ({"reward": {"accuracy": 0.9}}, "reward.accuracy: given 0.9"),
        ({"reward": {"errors": "repeat"}}, "reward.errors: given 'repeat'"),
        ({"reward": {"kind": "guess"}}, "reward.kind: given 'guess'"),
    ],
)
def test_refused_step_scores(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse(document)


def test_votes_may_be_held_to_a_bound_of_their_own() -> None:
    assert parse({"run": {"staleness_bound": 2}}).vote_bound == 2
    assert parse({"run": {"staleness_bound": 2, "judge_staleness_bound": 1}}).vote_bound == 1


def test_votes_are_not_dropped_where_nothing_else_rewards() -> None:
    document = at("run.stale_votes", "drop") | at("algorithm.overrides.use_outcome", False)
    with pytest.raises(ConfigError, match=r"run.stale_votes: given 'drop', allowed 'rejudge'"):
        parse(document)


def test_a_step_that_rewrites_has_service_for_a_pair_of_groups() -> None:
    one, inside = {"run": {"groups_per_step": 1}}, {"pairs_on_top": False}
    with pytest.raises(ConfigError, match=r"run.groups_per_step: given 1, expected at least 2"):
        parse(one | {"adaptation": inside})
    for allowed in ({}, inside | {"controller": "none"}):
        assert parse(one | {"adaptation": allowed}).run.groups_per_step == 1


def test_a_proposal_needs_service_for_one_whole_group() -> None:
    document = {"env_adapter": {"rollouts": 16}, "adaptation": {"max_rollouts": 8}}
    with pytest.raises(ConfigError, match=r"adaptation.max_rollouts: given 8, .*rollouts = 16"):
        parse(document)


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("run.stpes", "steps"),
        ("rnu", "adaptation"),
        ("models.critic", "rewriter"),
    ],
)
def test_an_unknown_field_is_refused_with_the_fields_that_there_are(field: str, known: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: unknown field; allowed are .*{known}"):
        parse(at(field, 1))


def test_an_unknown_option_of_a_preset_is_refused_with_the_options_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.preset rlanything.*'lambda'.*'lam'"):
        parse({"algorithm": {"overrides": {"lambda": 1}}})


@pytest.mark.parametrize("nothing", ["eval_every", "eval_tasks"])
def test_no_steps_are_an_evaluation_and_without_one_are_refused(nothing: str) -> None:
    assert parse({"run": {"steps": 0}}).run.steps == 0
    with pytest.raises(ConfigError, match=r"run.steps: given 0 with .*expected a training step"):
        parse({"run": {"steps": 0, nothing: 0}})


def test_every_problem_has_a_sentence_of_its_own() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"run": {"steps": -1, "colour": 1}, "reward": {"votes": 99}})
    assert len(caught.value.problems) == 3
    assert caught.value.detail == "; ".join(caught.value.problems)
    assert caught.value.status == 422


def test_the_empty_document_is_a_config_and_every_preset_resolves() -> None:
    assert parse({}) == RunConfig()
    for name in preset_names():
        document = {"algorithm": {"preset": name}}
        document |= TREE if resolve(name).estimator_part.siblings else {}
        document |= {"reward": {"kind": "opd"}} if name == "opd" else {}
        assert parse(document).algorithm.resolved.name == name


def test_a_config_survives_the_database_as_json() -> None:
    config = parse(
        {
            "run": {"steps": 3, "seed": 2**32 - 1},
            "models": {"policy": {"path": "/m", "stop": ["\n"]}},
            "env_adapter": {"options": {"wording": "plain", "depth": [1, None]}},
            "algorithm": {"overrides": {"policy_band": "none", "lam": 0.5}},
        }
    )
    assert parse(json.loads(json.dumps(config.model_dump(mode="json")))) == config


# ---- documents and overrides ----


def test_overrides_are_laid_over_the_document_section_by_section(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nsteps = 5\nname = "mine"\n[reward]\nvotes = 2\n')
    config = load(path, {"run": {"steps": 7}})
    assert (config.run.steps, config.run.name, config.reward.votes) == (7, "mine", 2)


def test_merging_changes_neither_side() -> None:
    base, over = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}
    assert merge(base, over) == {"a": {"b": 3, "c": 2}, "d": 4}
    assert (base, over) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4})
    assert merge({"a": {"b": 1}}, {"a": 5}) == {"a": 5}


def test_what_was_changed_of_one_preset_is_not_changed_of_another() -> None:
    base = {"algorithm": {"overrides": {"lam": 0.1}}}
    assert merge(base, {"algorithm": {"preset": "grpo"}}) == {"algorithm": {"preset": "grpo"}}
    same = {"algorithm": {"preset": "rlanything"}}
    assert merge(base, same)["algorithm"]["overrides"] == {"lam": 0.1}
    given = ["algorithm.overrides.kl_beta=0.5", "algorithm.preset=grpo"]
    assert with_assignments(base, given)["algorithm"] == {
        "preset": "grpo",
        "overrides": {"kl_beta": 0.5},
    }


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("run.steps=5", {"run": {"steps": 5}}),
        ("run.name=a=b", {"run": {"name": "a=b"}}),
        ('models.policy.stop=["x"]', {"models": {"policy": {"stop": ["x"]}}}),
        ("run.name=", {"run": {"name": ""}}),
    ],
)
def test_assignment(text: str, document: dict[str, Any]) -> None:
    assert assignment(text) == document


@pytest.mark.parametrize("text", ["run.steps", "=5"])
def test_an_assignment_without_a_field_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.field=value"):
        assignment(text)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    for content in (b"[run\n", b"name = '\xff\xfe'"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{path}: not valid TOML"):
            read_document(path)
    with pytest.raises(ConfigError, match=r"none\.toml: not found"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


# ---- the environment ----


def test_settings_come_from_the_environment_and_go_back_into_it() -> None:
    given = {
        "TRIFORGE_REDIS_URL": "redis://elsewhere:6379/1",
        "TRIFORGE_LEASE_S": "2.5",
        "TRIFORGE_API_KEY": "hush-hush",
        "TRIFORGE_TRAINER_URL": "http://trainer:8004/",
        "TRIFORGE_MODEL": "",
        "PATH": "/bin",
    }
    settings = Settings.from_env(given)
    assert (settings.redis_url, settings.lease_s) == ("redis://elsewhere:6379/1", 2.5)
    assert settings.trainer_url == "http://trainer:8004"
    assert settings.api_key.get_secret_value() == "hush-hush"
    assert "hush-hush" not in repr(settings)
    assert Settings.from_env(settings.environment()) == settings


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TRIFORGE_LEASE_S", "soon", "valid number"),
        ("TRIFORGE_RESEND_S", "nan", "finite"),
        ("TRIFORGE_MODELS", "mover", "name=http://host:port"),
        ("TRIFORGE_TRAINER_URL", "localhost:8004", "http://host:port"),
        ("TRIFORGE_POLICY_MODEL_URL", "http://host:99999", "http://host:port"),
        ("TRIFORGE_REWARD_URL", "http://host:port", "http://host:port"),
    ],
)
def test_an_impossible_variable_is_refused_by_its_name(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({name: value})
    assert caught.value.detail.startswith(f"{name}: given {value!r}")
    assert allowed in caught.value.detail


def test_an_unknown_variable_is_refused_with_the_variables_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"TRIFORGE_REDIS: unknown field; .*TRIFORGE_REDIS_URL"):
        Settings.from_env({"TRIFORGE_REDIS": "x"})


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("(a{1000}){1000}", 1_000_000),
        (r"[0-9]{1,3}(\.[0-9]{1,3}){3}", 15),
        (r"[\]{9}]{3}\{9\}\p{L}{7}a{,4}b{5,}", 22),
        ("[" * 100_000, 1),
    ],
)
def test_positions_of_an_expression(pattern: str, count: int) -> None:
    assert positions(pattern) == count


def test_an_expression_that_is_written_out_may_be_long() -> None:
    commands = "|".join(f"take apple {n} from shelf" for n in range(1000)) + "|go{2}"
    assert parse(at("models.policy.regex", commands)).models.policy.regex == commands


THREE: Any = {
    "models": {"mover": {"path": "/models/mover", "agents": ["mover", "scout"]}},
    "trainer": {"policy": {"epochs": 3}, "mover": {"learning_rate": 0.5}},
}


TREE: Any = {
    "env_adapter": {"strategy": "at_grpo"},
    "algorithm": {"preset": "at_grpo"},
    "adaptation": {"controller": "none"},
}
BEST: Any = {
    "env_adapter": {"strategy": "pa_rl"},
    "algorithm": {"preset": "pa_rl"},
    "adaptation": {"controller": "none"},
}


def test_a_document_may_have_further_trained_models_which_play_agents_of_the_environment() -> None:
    config = parse(THREE)
    assert config.trained == ("policy", "reward", "mover")
    assert config.models.agents == {"mover": "mover", "scout": "mover"}
    assert config.learner("mover").learning_rate == 0.5
    assert parse(THREE | {"trainer": {"policy": {"epochs": 3}}}).learner("mover").epochs == 3
    assert parse(json.loads(config.model_dump_json())) == config
    assert parse({}).trained == ("policy", "reward")
    assert parse(THREE | {"algorithm": {"preset": "grpo"}}).trained == ("policy", "mover")


APART: Any = {"models": THREE["models"] | {"second": {"judges": ["mover"]}}}


def test_a_further_model_may_judge_agents_of_the_environment() -> None:
    config = parse(APART | {"trainer": {"reward": {"epochs": 3}}})
    assert config.trained == ("policy", "reward", "mover", "second")
    assert list(config.models.players) == ["policy", "mover"]
    assert list(config.models.judging) == ["reward", "second"]
    assert config.models.judges == {"mover": "second"}
    assert (config.learner("second").epochs, config.learner("mover").epochs) == (3, 1)
    assert config.algorithm_of("second") == config.algorithm_of("reward")
    assert parse(json.loads(config.model_dump_json())) == config
    assert parse(APART | {"algorithm": {"preset": "grpo"}}).trained == ("policy", "mover")


def test_a_further_model_may_have_an_objective_of_its_own() -> None:
    config = parse(THREE | {"trainer": {"mover": {"job": "dpo_pair"}}})
    own = config.algorithm_of("mover")
    assert (own.job, own.estimator, own.kl_beta) == ("dpo_pair", "group", 0.0)
    assert config.algorithm_of("policy") == parse(THREE).algorithm_of("mover")
    assert config.algorithm_of("reward").job == "pg"
    scores = THREE | {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}
    demand = partial(demand_success, environment="scores")
    with pytest.raises(ConfigError, match="job = 'ce'"):
        demand(parse(scores | {"trainer": {"mover": {"job": "ce"}}}))


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"models": {"mover": {"path": "x"}}}, r"models.mover: unknown model; .*mover.agents"),
        ({"models": {"critic": {"agents": ["a"]}}}, r"models.critic: no name for a model"),
        ({"models": {"My_model": {"agents": ["a"]}}}, r"models.My_model: no name for a model"),
        ({"models": {n: {"agents": ["a"]} for n in "mn"}}, r"'a' is played by another model"),
        ({"models": {"policy": {"agents": ["a"]}}}, r"models.policy.agents: unknown field"),
        ({"models": {"mover": {"agents": ["a"], "top_p": 0.5}}}, r"models.mover.top_p: given 0.5"),
        ({"trainer": {"mover": {}}}, r"trainer.mover: unknown field; .*models.NAME.agents"),
        (
            {"models": {"x": {"agents": ["a"], "judges": ["b"]}}},
            r"models.x: .*those they judge .*and not both",
        ),
        (APART | {"trainer": {"second": {"job": "ce"}}}, r"trainer.second.job: given 'ce'"),
        (
            APART
            | {
                "reward": {"kind": "shuffled"},
                "algorithm": {"overrides": {"train_reward_model": False}},
            },
            r"models.second.judges: given with reward.kind = 'shuffled'",
        ),
        (
            {"models": {"second": {"judges": ["a"]}}, "env_adapter": {"played_by": "sessions"}},
            r"models.second.judges: given .*played_by = 'sessions'",
        ),
        (THREE | {"methods": {"envrl": {"sp": {"lambda0": 0.1}}}}, r"given with methods.envrl"),
        (THREE | {"env_adapter": {"played_by": "sessions"}}, r"given with env_adapter.played_by"),
        (THREE | {"algorithm": {"preset": "ppo"}}, r"given with a critic"),
        (THREE | {"trainer": {"mover": {"job": "critic"}}}, r"trainer.mover.job: given 'critic'"),
        ({"trainer": {"reward": {"job": "ce"}}}, r"trainer.reward.job: unknown field"),
        (
            THREE | TREE | {"trainer": {"mover": {"job": "ce"}}},
            r"trainer.mover.job: given 'ce' .*strategy = 'at_grpo'",
        ),
        (
            THREE | BEST | {"trainer": {"mover": {"job": "pg"}}},
            r"trainer.mover.job: given 'pg' .*strategy = 'pa_rl'",
        ),
    ],
)
def test_refused_further_model(document: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse(document)


SIDECAR: dict[str, Any] = {"env_adapter": {"played_by": "trainer"}, "run": {"eval_every": 0}}


def test_the_policy_of_another_trainer_is_not_trained_here() -> None:
    assert parse(SIDECAR).trained == ("reward",)
    assert parse(SIDECAR | {"algorithm": {"preset": "grpo"}}).trained == ()


UNVOTED: dict[str, Any] = {"preset": "grpo"}
FIXED: dict[str, Any] = {"controller": "none"}


@pytest.mark.parametrize(
    "document",
    [
        {"algorithm": {"preset": "audited"}, "methods": {"audit": {"by_competence": True}}},
        {"reward": {"kind": "pairwise"}, "algorithm": {"preset": "pairwise"}},
        {"adaptation": {"controller": "rlve"}, "algorithm": UNVOTED},
        {"methods": {"starpo": {"stop": True}}},
        {"methods": {"envrl": {}}},
    ],
)
def test_allowed_with_the_policy_of_another_trainer(document: Any) -> None:
    assert "policy" not in parse(SIDECAR | document).trained


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"run": {}}, "run.eval_every above 0"),
        ({"algorithm": {"preset": "ppo"}}, "a critic"),
        ({"reward": {"kind": "log_ratio"}, "algorithm": UNVOTED}, "reward.kind = 'log_ratio'"),
        ({"reward": {"kind": "oracle"}, "algorithm": UNVOTED}, "reward.kind = 'oracle'"),
        ({"reward": {"kind": "cure"}, "algorithm": UNVOTED}, "reward.kind = 'cure'"),
        ({"reward": {"kind": "opd"}, "algorithm": {"preset": "opd"}}, "reward.kind = 'opd'"),
        (
            {
                "reward": {"kind": "vlm_rl"},
                "algorithm": UNVOTED,
                "methods": {"vlm_rl": {"positive": ["on"], "negative": ["off"]}},
            },
            "reward.kind = 'vlm_rl'",
        ),
        ({"methods": {"rloop": {}}}, "methods.rloop"),
        ({"methods": {"envrl": {"measure": True}}}, "methods.envrl"),
        ({"algorithm": {"preset": "pa_rl"}, "adaptation": FIXED}, "methods.pa_rl"),
        ({"methods": {"starpo": {"prompts": 4}}}, "methods.starpo.prompts = 4"),
    ],
)
def test_refused_with_the_policy_of_another_trainer(document: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"played_by: given 'trainer' with {sentence}"):
        parse(SIDECAR | document)


@pytest.mark.parametrize("kind", ["oracle", "cure"])
def test_step_scores_of_the_environment_are_refused_with_agents(kind: str) -> None:
    document = {
        "env_adapter": {"played_by": "sessions"},
        "reward": {"kind": kind},
        "algorithm": UNVOTED,
    }
    with pytest.raises(ConfigError, match=f"given 'sessions' with reward.kind = '{kind}'"):
        parse(document)


ONE_BASE: dict[str, Any] = {
    "models": {
        "policy": {"path": "/models/base"},
        "reward": {"path": "/models/base", "engines_of": "policy"},
        "mover": {"path": "/models/base", "agents": ["mover"], "engines_of": "policy"},
    },
    "trainer": {"policy": {"lora_rank": 8}, "reward": {"lora_rank": 4}},
}


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ({"models": {"mover": {"path": "/models/other"}}}, "mover"),
        ({"models": {"mover": {"engines_of": "reward"}}}, "mover"),
        ({"models": {"rewriter": {"path": "/models/base", "engines_of": "policy"}}}, "rewriter"),
        ({"trainer": {"reward": {"lora_rank": 0}}}, "reward"),
        ({"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}, "reward"),
        ({"run": {"colocate": True}}, "mover"),
    ],
)
def test_shared_engines_need_one_base(over: dict[str, Any], name: str) -> None:
    assert parse(ONE_BASE).models.reward.engines_of == "policy"
    with pytest.raises(ConfigError, match=rf"models\.{name}\.engines_of: given"):
        parse(merge(ONE_BASE, over))


def test_services_of_further_models_are_settings_by_name() -> None:
    settings = Settings.from_env(
        {
            "TRIFORGE_MODELS": "mover=http://a.example:81, scout=http://b:82",
            "TRIFORGE_REWARD_MODEL_URL": "none",
        }
    )
    assert settings.trained == ("policy", "mover", "scout")
    assert settings.model_url("mover") == "http://a.example:81"
    assert "a.example" in settings.service_hosts
    with pytest.raises(ConfigError, match="TRIFORGE_MODELS=other="):
        settings.demand_model("other")


def test_one_card_for_engines_and_learners_is_of_synchronous_runs() -> None:
    with pytest.raises(ConfigError, match=r"run.colocate: given true with run.staleness_bound"):
        parse({"run": {"colocate": True, "staleness_bound": 1}})


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_moved_option_is_refused_with_its_new_place(old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=f"^{old}: .* {new}$"):
        parse(at(old, {}))
