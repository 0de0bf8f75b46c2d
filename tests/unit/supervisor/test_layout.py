"""The processes of a deployment: which are started, and what they are given."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from triforge.config import RunConfig, Settings, parse
from triforge.errors import ConfigError
from triforge.supervisor.layout import Layout, demand_startable, plan_layout
from triforge.supervisor.ports import check_port

SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "head_dim": 32,
}  # fmt: skip


def planned(
    tmp_path: Path, environ: dict[str, str], settings: Settings | None = None, **sections: Any
) -> Layout:
    """The layout of a config whose acting and judging models are one folder."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    model = {"path": str(folder)}
    config = parse({"models": {"policy": model, "reward": model}} | sections)
    return plan_layout(
        config, settings or Settings(), config_path=tmp_path / "run.toml", state=tmp_path / "state",
        auto_ports=True, environ=environ,
    )  # fmt: skip


def test_a_config_that_rewrites_tasks_without_a_rewriter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.rewriter\.path: given nothing"):
        planned(tmp_path, {})


@pytest.mark.parametrize(
    ("environ", "controller"),
    [({"TRIFORGE_REWRITER_MODEL_URL": "http://somewhere:80/v1"}, "llm_rewrite"), ({}, "none")],
)
def test_layout_without_rewriter(tmp_path: Path, environ: dict[str, str], controller: str) -> None:
    layout = planned(tmp_path, environ, adaptation={"controller": controller})
    names = {spec.name for spec in layout.specs}
    assert "reward-model" in names
    assert "rewriter-model" not in names
    assert ("adapt-worker" in names) == (controller == "llm_rewrite")
    trainer = next(spec for spec in layout.specs if spec.name == "trainer")
    own = Settings.from_env({n: v for n, v in trainer.env.items() if n.startswith("TRIFORGE_")})
    assert own.adapt_workers == ("adapt-worker" in names)


def test_only_what_the_algorithm_needs_is_started(tmp_path: Path) -> None:
    config = {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}
    layout = planned(tmp_path, {}, models={"policy": {"path": str(tmp_path / "model")}}, **config)
    assert [spec.name for spec in layout.specs] == [
        "valkey", "engine-policy", "policy-model", "env_adapter", "trainer", "dashboard", "rollout-worker",
        "learner-policy",
    ]  # fmt: skip
    found = layout.settings
    for name in ("reward_model", "reward", "rewriter_model"):
        assert not found.has(name)
    trainer = next(spec for spec in layout.specs if spec.name == "trainer")
    assert not Settings.from_env(dict(trainer.env)).has("reward_model")


def test_a_sidecar_has_no_policy(tmp_path: Path) -> None:
    document = {
        "models": {"reward": {"path": str(tmp_path / "model")}},
        "run": {"eval_every": 0},
        "env_adapter": {"played_by": "trainer"},
    }
    layout = planned(tmp_path, {}, adaptation={"controller": "none"}, **document)
    assert [spec.name for spec in layout.specs] == [
        "valkey", "engine-reward", "reward-model", "env_adapter", "reward", "trainer", "dashboard", "rollout-worker",
        "judge-worker", "learner-reward",
    ]  # fmt: skip
    assert not layout.settings.has("policy_model")


def test_policy_that_judges_itself(tmp_path: Path) -> None:
    models = {"policy": {"path": str(tmp_path / "model")}}
    layout = planned(
        tmp_path, {}, models=models, algorithm={"preset": "spark"},
        adaptation={"controller": "none"},
    )  # fmt: skip
    names = {spec.name for spec in layout.specs}
    assert "reward" in names
    assert not {"judge-worker", "reward-model", "engine-reward", "learner-reward"} & names
    assert layout.settings.has("reward")


def test_votes_without_a_reward_model_are_refused_with_what_does_without(tmp_path: Path) -> None:
    models = {"policy": {"path": str(tmp_path / "model")}}
    with pytest.raises(ConfigError, match=r"models\.reward\.path: .* preset 'rlanything' asks for"):
        planned(tmp_path, {}, models=models, adaptation={"controller": "none"})


def test_adapters_over_one_base_are_served_by_one_engine(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    models: dict[str, Any] = {
        "policy": {"path": path, "engines_of": "reward"},
        "reward": {"path": path},
        "mover": {"path": path, "agents": ["mover"], "engines_of": "reward"},
    }
    trainer = {role: {"lora_rank": 4} for role in ("policy", "reward")}
    layout = planned(
        tmp_path, {}, models=models, trainer=trainer, adaptation={"controller": "none"}
    )
    assert [s.name for s in layout.specs if s.name.startswith("engine-")] == ["engine-reward"]
    services = [s for s in layout.specs if s.name.endswith("-model")]
    assert {s.name for s in services} == {"policy-model", "reward-model", "mover-model"}
    assert len({s.env["TRIFORGE_ENGINES"] for s in services}) == 1
    assert {s.env["TRIFORGE_SHARED_ENGINES"] for s in services} == {"true"}
    del models["mover"]["engines_of"]
    apart = planned(tmp_path, {}, models=models, trainer=trainer, adaptation={"controller": "none"})
    found = {s.name: s.env for s in apart.specs}
    assert "engine-mover" in found
    assert found["mover-model"].get("TRIFORGE_SHARED_ENGINES") != "true"


def test_engines_ask_for_the_keys_that_their_services_show(tmp_path: Path) -> None:
    settings = Settings(api_key=SecretStr("user"), admin_api_key=SecretStr("admin"))
    layout = planned(tmp_path, {}, settings, adaptation={"controller": "none"})
    (engine,) = [spec for spec in layout.specs if spec.name == "engine-policy"]
    assert engine.env["LOCAL_ENGINE_API_KEY"] == "user"
    assert engine.env["LOCAL_ENGINE_ADMIN_API_KEY"] == "admin"


def four_in_a_row() -> int:
    """Return the first of four free ports, below those that the kernel assigns."""
    for first in range(20_000, 32_000, 4):
        with contextlib.suppress(ConfigError):
            for port in range(first, first + 4):
                check_port(port, "")
            return first
    pytest.fail("no four ports in a row are free")


def test_each_process_without_a_api_shows_its_metrics_at_a_port_of_its_own(tmp_path: Path) -> None:
    first = four_in_a_row()
    layout = planned(tmp_path, {}, Settings(metrics_port=first), adaptation={"controller": "none"})
    given = {spec.name: int(spec.env["TRIFORGE_METRICS_PORT"]) for spec in layout.specs if spec.env}
    own = ["rollout-worker", "judge-worker", "learner-policy", "learner-reward"]
    assert [given[name] for name in own] == [first + n for n in range(4)]


def test_ports_for_metrics_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"TRIFORGE_METRICS_PORT: given 65535, expected at most 65532"
    ):
        planned(tmp_path, {}, Settings(metrics_port=65535), adaptation={"controller": "none"})


def test_a_further_model_has_an_engine_a_policy_service_and_a_learner(tmp_path: Path) -> None:
    folder = {"path": str(tmp_path / "model")}
    models = {"policy": folder, "mover": folder | {"agents": ["mover"]}}
    config = {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}
    layout = planned(tmp_path, {}, models=models, **config)
    specs = {spec.name: spec for spec in layout.specs}
    assert {"engine-mover", "mover-model", "learner-mover"} <= specs.keys()
    assert specs["learner-mover"].command[-2:] == ("--role", "mover")
    judge = models | {"reward": folder, "second": folder | {"judges": ["mover"]}}
    judged = planned(tmp_path, {}, models=judge, adaptation={"controller": "none"})
    names = {spec.name for spec in judged.specs}
    assert {"second-model", "learner-second", "learner-reward"} <= names
    voteless = planned(tmp_path, {}, models=judge, **config)
    assert not {"second-model", "reward-model"} & {spec.name for spec in voteless.specs}
    service = Settings.from_env(
        {n: v for n, v in specs["mover-model"].env.items() if n.startswith("TRIFORGE_")}
    )
    assert (service.role, service.trained) == ("mover", ("policy", "mover"))
    assert specs["mover-model"].ready_url == f"{service.model_url('mover')}/readyz"
    assert service.engines in specs["engine-mover"].ready_url
    given = Settings(models="mover=http://127.0.0.1:8931", model_engines="mover=http://gpu:30000")
    layout = planned(tmp_path, {}, given, models=models, **config)
    names = [spec.name for spec in layout.specs]
    assert ("engine-mover" in names, "mover-model" in names) == (False, True)
    assert layout.settings.model_url("mover") == "http://127.0.0.1:8931"


def test_what_no_start_survives_is_known_before_a_model_is_made() -> None:
    for wrong in (
        {"TRIFORGE_HOST": "0.0.0.0"},
        {"TRIFORGE_AUTH": "keys", "TRIFORGE_SERVICE_SECRET": "short"},
    ):
        with pytest.raises(ConfigError):
            demand_startable(Settings.from_env(wrong), RunConfig())
    for right in (
        {},
        {"TRIFORGE_AUTH": "keys"},
        {"TRIFORGE_HOST": "0.0.0.0", "TRIFORGE_AUTH": "open"},
    ):
        demand_startable(Settings.from_env(right), RunConfig())
