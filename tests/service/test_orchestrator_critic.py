"""A run with a critic: the batch of its learner, and that the learner accepts it."""

from __future__ import annotations

import pytest

from tests.service.fake_loop import Loop
from triforge.store.rows import read_rows


@pytest.fixture(autouse=True)
def _keep_rows(loop: Loop) -> None:
    loop.artifacts.delete = lambda uri: None  # type: ignore[method-assign]


async def test_rows_and_settings_of_a_run_with_a_critic(loop: Loop) -> None:
    changes = {
        "algorithm": {"preset": "ppo_bilevel", "overrides": {"value_clip": 0.3}},
        "trainer": {"critic": {"learning_rate": 2e-4, "alone_steps": 1}},
    }
    run = loop.submit_with(changes)
    assert (await loop.conduct(run)).status == "finished"
    batches = loop.learners["policy"].batches
    assert [batch.step for batch in batches] == [1, 2]
    assert loop.learners["reward"].batches == []
    for batch in batches:
        algorithm = batch.algorithm
        assert (algorithm.estimator, algorithm.value_clip) == ("bilevel_gae", 0.3)
        assert algorithm.estimator_options.model_dump()["turn_gamma"] == 0.95
        assert algorithm.whiten
        assert batch.critic.learning_rate == 2e-4
        assert batch.critic.alone_steps == 1
        for row in read_rows(loop.artifacts, batch.uri):
            assert len(row.rewards) == len(row.ids)
            assert all(row.weights[end] > 0 for end in row.ends)
            assert row.ends
