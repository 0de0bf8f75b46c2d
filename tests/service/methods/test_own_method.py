"""A method outside of the repository: its document, its hooks in a run, and the refusal of what it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.trainer.loop.hooks import LoopHooks
from tests.service.fake_loop import CONFIG, loop_of
from triforge.broker import Broker
from triforge.config import parse
from triforge.errors import ConfigError
from triforge.methods import Method, find, loop_part

PATH = "tests.service.methods.own_method:METHOD"


def document(**options: Any) -> dict[str, Any]:
    return CONFIG | {"run": CONFIG["run"] | {"steps": 5}, "methods": {PATH: options}}


async def test_hooks_of_a_method_named_by_its_path_are_called_in_every_step(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    config = parse(document(limit=2))
    async with loop_of(broker, redis_url, tmp_path) as loop:
        stored = config.model_dump(mode="json")
        run = await loop.conduct(loop.store.create(name="run", pool_id="pool", config=stored))
        assert (run.status, run.step, run.reason) == ("finished", 2, "its own limit is reached")
        steps = loop.store.steps(run.id)
        assert [step.metrics["own/steps"] for step in steps] == [0.0, 1.0, 2.0]
        assert loop.store.run_state(run.id)[PATH] == {"steps": 2}
        rate = config.trainer.policy.learning_rate
        batches = loop.learners["policy"].batches
        assert {batch.learner.learning_rate for batch in batches} == {rate / 2}


@pytest.mark.parametrize(
    ("methods", "field"),
    [
        ({PATH: {"limit": 0}}, f"methods.{PATH}.limit"),
        ({PATH: {"colour": 1}}, f"methods.{PATH}.colour"),
        ({"unheard_of": {}}, "methods.unheard_of"),
        ({"tests.service.methods.own_method:NOTHING": {}}, "methods.tests.service.methods"),
    ],
)
def test_unknown_methods_and_options_are_refused_with_their_place(
    methods: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"methods": methods})
    assert caught.value.detail.startswith(field)


def used(document: dict[str, Any]) -> Any:
    (method,) = (m for m in parse(document).methods_used if m.name == PATH)
    return method


@pytest.mark.parametrize(
    "path", ["tests.service.methods.own_method:NOTHING", "no.such:Hooks", f"{__name__}:Misspelt"]
)
async def test_a_loop_part_that_cannot_be_used_is_refused_before_the_run(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loop_part(replace(used(document()), loop=path))
    assert caught.value.detail.startswith(f"methods.{PATH}.loop: given {path!r}")


class Misspelt(LoopHooks):
    async def after_stp(self, step: int) -> None: ...


class Failing(LoopHooks):
    async def begin(self, step: int, versions: Any) -> None:
        raise KeyError("colour")


FAILING = Method(name="failing", loop=f"{__name__}:Failing")


async def test_an_error_of_a_hook_names_the_method_and_the_hook(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    name = f"{__name__}:FAILING"
    async with loop_of(broker, redis_url, tmp_path) as loop:
        run = await loop.conduct(loop.submit_with({"methods": {name: {}}}))
    assert run.status == "failed"
    assert f"methods.{name}: the hook begin raised KeyError" in run.reason


def test_a_name_of_the_loop_is_no_name_of_a_method() -> None:
    with pytest.raises(ConfigError, match="method window"):
        find("window")
