"""The config of a submitted run, the runs that are rejected, and the folders of exports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from services.trainer.runs.routes import export
from services.trainer.runs.runs import RunRequest, Runs
from services.trainer.runs.store import RunStore
from triforge.access.callers import Caller, acting_for
from triforge.broker import Broker
from triforge.config import Settings
from triforge.errors import ConfigError, InputError, NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database
from triforge.store.tables import RunRow
from triforge.types import Params, PoolState, Proposal, RunStep

DOCUMENT = """
[env_adapter.options]
wording = "plain"
numbered = true
"""
SEEN: dict[str, Any] = {
    "algorithm": {"preset": "vlm_rl"},
    "adaptation": {"controller": "none"},
    "reward": {"kind": "vlm_rl"},
    "methods": {"vlm_rl": {"positive": ["a"], "negative": ["b"]}},
}


class OnePool:
    """An env_adapter with a pool that is to be played tersely."""

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        return PoolState(
            id="pool-1", name=pool, environment="household", options={"wording": "terse"},
            created_at=0.0, proposals={},
            tasks={"train": {"active": 4} if pool == "small" else {"active": 16, "paused": 4, "pending": 9}},
            programs=pool == "programs", labelled=pool == "labelled", scored=pool == "scored", levelled=pool != "flat",
        )  # fmt: skip

    async def proposals(self, pool: str, **wanted: str | None) -> list[Proposal]:
        return []

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        if "colour" in options:
            raise InputError("household options: field colour: unknown, known are wording")
        kitchen = await self.pool("kitchen")
        return kitchen.model_copy(update={"shown": ("reference",)})


@pytest.fixture
def store(database: Database) -> RunStore:
    return RunStore(database)


Made = Callable[..., Runs]


@pytest.fixture
def runs_with(broker: Broker, store: RunStore, tmp_path: Path) -> Made:
    """A trainer of a deployment with these settings."""

    def made(**settings: Any) -> Runs:
        return Runs(
            store=store, pools=OnePool(), broker=broker, artifacts=ArtifactStore(str(tmp_path)),
            settings=Settings(**settings), exports=tmp_path,
        )  # fmt: skip

    return made


@pytest.fixture
def runs(runs_with: Made, tmp_path: Path) -> Runs:
    document = tmp_path / "deployment.toml"
    document.write_text(DOCUMENT)
    return runs_with(config=str(document))


@pytest.mark.parametrize(
    ("config", "played"),
    [
        ({}, {"wording": "terse", "numbered": True}),
        ({"env_adapter": {"options": {"numbered": False}}}, {"wording": "terse", "numbered": False}),
        ({"env_adapter": {"options": {"wording": "plain"}}}, {"wording": "plain", "numbered": True}),
    ],
)  # fmt: skip
async def test_a_pool_is_played_with_its_own_options_unless_the_run_says_otherwise(
    runs: Runs, config: dict[str, Any], played: dict[str, Any]
) -> None:
    run = await runs.submit(RunRequest(pool="kitchen", config=config), "key")
    assert run.config["env_adapter"]["options"] == played
    again = await runs.submit(RunRequest(pool="kitchen", config=config), "key")
    assert again.id == run.id


async def test_a_run_keeps_whole_paths_of_folders_that_the_document_names_relatively(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    models = {"policy": {"path": "small"}}
    run = await runs.submit(RunRequest(pool="kitchen", config={"models": models}), None)
    assert run.config["models"]["policy"]["path"] == str(tmp_path / "small")
    assert run.config["models"]["reward"]["path"] == ""


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": {"overrides": {"estimator": "no_such_module:mean"}}},
        {"reward": {"kind": "no_such_module:score"}},
        {"adaptation": {"controller": "no_such_module:control"}},
        {"methods": {"no_such_module:METHOD": {}}},
        {"env_adapter": {"strategy": "no_such_module:METHOD"}},
        {"trainer": {"helper": {"job": "no_such_module:job"}}},
    ],
)
async def test_where_keys_are_asked_for_no_module_is_imported_that_the_operator_does_not_list(
    runs_with: Made, config: dict[str, Any]
) -> None:
    asked = RunRequest(pool="kitchen", config=config)
    for listed in ("", "another_module", "no_such_module:another"):
        with pytest.raises(InputError, match=r"no_such_module:\w+.*TRIFORGE_PLUGINS"):
            await runs_with(auth="keys", plugins=listed).submit(asked, None)
    for listed in ("no_such_module", "any"):
        with suppress(ConfigError):  # imported now where it matters, and not there
            await runs_with(auth="keys", plugins=listed).submit(asked, None)


@pytest.mark.parametrize(
    ("pool", "given", "played"), [("small", {}, 4), ("kitchen", {}, 16), ("small", {"groups_per_step": 3}, 3)]
)  # fmt: skip
async def test_a_step_plays_no_more_groups_than_the_pool_has_tasks_unless_it_is_set(
    runs: Runs, pool: str, given: dict[str, Any], played: int
) -> None:
    run = await runs.submit(RunRequest(pool=pool, config={"run": given}), None)
    assert run.config["run"]["groups_per_step"] == played


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"env_adapter": {"options": {"colour": 1}}}, "field colour: unknown"),
        ({"run": {"groups_per_step": 21}}, "given 21, the pool 'kitchen' has 20 training tasks"),
        ({"models": {"policy": {"path": "/no/such/model"}}}, "models.policy.path: given '/no/such"),
        (SEEN, "methods.vlm_rl: given, and this deployment has no encoder"),
    ],
)  # fmt: skip
async def test_what_would_fail_later_is_refused_when_it_is_submitted(
    runs: Runs, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await runs.submit(RunRequest(pool="kitchen", config=config), None)
    assert (await runs.submit(RunRequest(pool="kitchen"), None)).status == "queued"


NO_MODELS = {"reward_model_url": "none", "rewriter_model_url": "none"}
NO_ADAPTATION = {"adapt_workers": False}


@pytest.mark.parametrize(
    ("settings", "config", "reason"),
    [
        (
            NO_MODELS,
            {"adaptation": {"controller": "none"}},
            "algorithm.preset: the run needs votes",
        ),
        (
            NO_MODELS,
            {"algorithm": {"preset": "grpo"}},
            "adaptation.controller: given 'llm_rewrite'",
        ),
        (
            NO_ADAPTATION,
            {"adaptation": {"controller": "rlve"}},
            "given 'rlve', .* no adapt workers",
        ),
        (NO_ADAPTATION, {}, "given 'llm_rewrite', .* no adapt workers"),
        (NO_ADAPTATION, {"adaptation": {"controller": "none"}}, ""),
    ],
)
async def test_a_run_that_needs_what_the_deployment_has_not_is_refused(
    runs_with: Made, settings: dict[str, Any], config: dict[str, Any], reason: str
) -> None:
    submitting = runs_with(**settings).submit(RunRequest(pool="kitchen", config=config), None)
    if reason:
        with pytest.raises(ConfigError, match=reason):
            await submitting
    else:
        assert (await submitting).status == "queued"


async def test_another_preset_is_that_preset_and_stands_with_the_run(
    runs: Runs, tmp_path: Path
) -> None:
    changes = '[algorithm.overrides]\nlam = 0.15\nreward_band = "none"\n'
    (tmp_path / "deployment.toml").write_text(DOCUMENT + changes)
    mine = await runs.submit(RunRequest(pool="kitchen"), None)
    assert mine.algorithm.endswith("other than in the preset: lam = 0.15, reward_band = None")
    other = await runs.submit(
        RunRequest(pool="kitchen", config={"algorithm": {"preset": "grpo"}}), None
    )
    assert other.algorithm == (
        "grpo: estimator group, normalise std, loss ppo, no votes, no filter"
    )


TESTS = {"reward": {"kind": "cure"}}
ORACLE = {
    "reward": {"kind": "oracle", "accuracy": 0.75},
    "algorithm": {"overrides": {"train_reward_model": False}},
}
SHOWN: dict[str, Any] = {"reward": {"shows": ["reference", "episode"]}}
POINTS: dict[str, Any] = {"reward": {"shows": ["rubric", "reference"]}}
LADDER = {"adaptation": {"controller": "rlve"}}
GRPO: dict[str, Any] = {"algorithm": {"preset": "grpo"}}
SCORED = ".*env_adapter.options.success_at"


@pytest.mark.parametrize(
    ("pool", "config", "refused"),
    [
        ("kitchen", TESTS, "reward.kind: given 'cure' for the pool 'kitchen'"),
        ("programs", TESTS, ""),
        ("kitchen", ORACLE, "given 'oracle' for the pool 'kitchen'.*do not label"),
        ("labelled", ORACLE, ""),
        ("kitchen", SHOWN, ""),
        ("kitchen", POINTS, "reward.shows: given 'rubric' for the pool 'kitchen' of 'household'"),
        ("flat", LADDER, "for the pool 'flat'.*no difficulty levels"),
        ("kitchen", LADDER, ""),
        ("scored", {}, r"algorithm 'rlanything' \(train_reward_model = true\)" + SCORED),
        ("scored", GRPO, "adaptation.controller = 'llm_rewrite'" + SCORED),
        ("scored", GRPO | {"adaptation": {"controller": "none"}}, ""),
        ("scored", {"env_adapter": {"options": {"success_at": 0.5}}}, ""),
    ],
)
async def test_what_the_tasks_of_a_pool_do_not_have_is_not_asked_of_them(
    runs: Runs, pool: str, config: dict[str, Any], refused: str
) -> None:
    submitting = runs.submit(RunRequest(pool=pool, config=config), None)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            await submitting
    else:
        assert (await submitting).status == "queued"


async def test_an_export_that_fails_leaves_no_folder(
    runs: Runs, store: RunStore, tmp_path: Path
) -> None:
    run = await runs.submit(RunRequest(pool="kitchen"), None)
    store.commit_step(
        RunStep(
            run_id=run.id, step=1, at=0.0, policy_version=1, reward_version=1, metrics={},
            artifacts={"step_record": "runs/gone.parquet"},
        )
    )  # fmt: skip
    with pytest.raises(NotFoundError):
        await export(run.id, runs)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # noqa: ASYNC240


async def test_a_critic_learns_from_no_run_that_the_caller_may_not_see(
    runs: Runs, store: RunStore
) -> None:
    other = store.create(name="other", pool_id="pool-1", config={}, tenant="red").id
    config = {
        "algorithm": {"preset": "pa_rl"},
        "adaptation": {"controller": "none"},
        "env_adapter": {"strategy": "pa_rl"},
        "methods": {"pa_rl": {"offline_run": other}},
    }
    refused = "methods.pa_rl.offline_run: given 'run-.*expected a run with recorded steps"
    with acting_for(Caller(tenant="red")), pytest.raises(ConfigError, match=refused):
        await runs.submit(RunRequest(pool="kitchen", config=config), None)  # it has none yet
    with store._db.write() as session:
        session.execute(update(RunRow).values(step=1))
    with acting_for(Caller(tenant="blue")), pytest.raises(ConfigError, match=refused):
        await runs.submit(RunRequest(pool="kitchen", config=config), None)
    with acting_for(Caller(tenant="red")):
        assert (await runs.submit(RunRequest(pool="kitchen", config=config), None)).id != other
