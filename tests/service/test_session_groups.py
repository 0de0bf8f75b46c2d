"""Groups that agents play: places, tries, keys, and the trajectories that judges and learners get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest

from services.env_adapter.pools.store import PoolStore
from services.env_adapter.rollout.worker import RolloutWorker
from services.env_adapter.sessions.groups import SessionGroups
from services.env_adapter.sessions.store import SessionStore
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from tests.sections import flat_group
from tests.service.session_services import Services, services
from triforge.algorithms.algorithm import resolve
from triforge.broker import JUDGE_QUEUE, SessionLog
from triforge.environments import registry
from triforge.rollout.protocols import EnvironmentFamily, KeepImage
from triforge.store.tables import RunRow, SessionRow
from triforge.testing import FakeGenerate
from triforge.types import GroupTask, MadeSession, Sampling, TrajectoryGroup

RUN = "run-1"


class Run:
    """A run that agents play, with a rollout worker and a pool of two tasks."""

    def __init__(self, both: Services, tasks: list[str], keep: KeepImage | None = None) -> None:
        self.both, self.tasks = both, tasks
        store = SessionStore(both.database)
        self.worker = RolloutWorker(
            broker=both.broker,
            generate=FakeGenerate(["unasked"]),
            read_task=PoolStore(both.database).task,
            family=registry.family,
            sessions=SessionGroups(store, SessionLog(both.broker), keep=keep, poll_s=0.02),
        )

    def group(self, name: str = "g", **more: Any) -> GroupTask:
        fields: dict[str, Any] = {
            "group_id": name, "run_id": RUN, "step": 1, "task_id": self.tasks[0], "purpose": "train", "rollouts": 2,
            "votes": 1, "seed": 5, "sampling": Sampling(max_new_tokens=7, temperature=0.5), "retries": 1,
            "deadline_s": 60.0, "played_by": "sessions",
        }  # fmt: skip
        return flat_group(**fields | more)

    def play(self, group: GroupTask) -> asyncio.Task[None]:
        return asyncio.create_task(self.worker.play(group))

    async def begin(self, **wanted: Any) -> MadeSession:
        """A session of the run, as soon as there is a place."""
        async with asyncio.timeout(5):
            while True:
                reply = await self.both.env.post("/v1/sessions", json={"run": RUN, **wanted})
                if reply.status_code == 201:
                    return MadeSession.model_validate_json(reply.content)
                assert reply.status_code == 429, reply.text
                await asyncio.sleep(0.02)

    async def act(self, made: MadeSession, *says: str) -> None:
        async with self.both.client(made) as client:
            messages: list[Any] = [{"role": "user", "content": "go"}]
            for text in says:
                self.both.says(text)
                answer = await client.chat.completions.create(
                    model="m",
                    messages=messages,
                    temperature=1.7,
                    max_tokens=50,
                    frequency_penalty=1,
                )
                reply = answer.choices[0].message.content
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"you went {text}"}]  # fmt: skip

    async def played(self, name: str = "g") -> TrajectoryGroup:
        found = await self.both.broker.group(name)
        assert found is not None
        return found


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    async with services(tmp_path) as both:
        yield await run_of(both)


async def run_of(both: Services, keep: KeepImage | None = None) -> Run:
    pool = {"name": "kitchen", "environment": "household", "generate": {"count": 2, "seed": 1}}
    made = (await both.env.post("/v1/pools", json=pool)).json()
    listed = (await both.env.get(f"/v1/pools/{made['id']}/tasks")).json()["items"]
    with both.database.write() as session:
        session.add(
            RunRow(
                id=RUN, name="r", pool_id=made["id"], status="running", step=0, policy_version=0, reward_version=0,
                config={"env_adapter": {"played_by": "sessions"}}, state={}, reason="", created_at=0.0, updated_at=0.0,
            )
        )  # fmt: skip
    return Run(both, [task["id"] for task in listed], keep)


async def test_weights_older_than_those_of_the_group_do_not_answer(run: Run) -> None:
    playing = run.play(run.group(oldest={"policy": 5}))  # version 4 serves
    made = await run.begin()
    with pytest.raises(openai.InternalServerError) as refused:
        await run.act(made, "north")
    assert refused.value.status_code == 503
    assert await run.both.turns(made) == ()
    playing.cancel()


async def test_sessions_become_a_group_that_is_judged_and_trained_on(run: Run) -> None:
    playing = run.play(run.group(oldest={"policy": 4}))
    one, two = await run.begin(), await run.begin()
    assert {one.session.index, two.session.index} == {0, 1}
    assert one.task is not None
    assert one.task.id == run.tasks[0]
    await run.act(one, "left", "right")
    await run.act(two, "up")
    own = {"files.read": 3.0}
    await run.both.tell(one, "reward", success=True, steps={"1": 0.5, "2": 0.0}, metrics=own)
    await run.both.tell(two, "reward", success=False)
    await asyncio.wait_for(playing, 5)
    played = await run.played()
    first, second = played.trajectories
    assert [(t.outcome.value, t.outcome.metrics) for t in (first, second)] == [(1, own), (-1, {})]
    assert [(s.observation, s.response, s.next_observation, s.reward) for s in first.steps] == [
        ("go", "left", "you went left", 0.5),
        ("you went left", "right", "", 0.0),
    ]
    assert [len(t.segments) for t in (first, second)] == [1, 1]
    for path, body in run.both.engine.calls:
        if path == "/generate":  # as the run says, whatever the agent asks for
            params = body["sampling_params"][0]
            assert (params["temperature"], params["max_new_tokens"]) == (0.5, 7)
            assert not params.get("frequency_penalty")
    assert await run.both.broker.depth(JUDGE_QUEUE) == 2
    limits = Limits(max_tokens=1000, max_rows=0, bound=0)
    judged = await _judged(run, played)
    options = SampleOptions(
        algorithm=resolve("grpo", {}), players={"policy": (4, limits)}, judging={"reward": (0, limits)},
        seed=1,
    )  # fmt: skip
    rows = build_samples([judged], options).rows["policy"]
    trained = {row.key: [i for i, w in zip(row.ids, row.weights, strict=True) if w] for row in rows}
    sampled = {f"{t.id}/0": [i for s in t.steps for i in t.segments[0].ids[s.start : s.end]] for t in (first, second)}  # fmt: skip
    assert trained == sampled


async def _judged(run: Run, played: TrajectoryGroup) -> Any:
    free = played.model_copy(update={"group": played.group.model_copy(update={"votes": 0})})
    await run.both.broker.forget_group("g", [t.id for t in played.trajectories])
    await run.both.broker.put_payload(free)
    return await run.both.broker.judged_group("g")


async def test_a_failed_place_is_given_away_again_and_at_last_is_data(run: Run) -> None:
    playing = run.play(run.group())
    good, bad = await run.begin(), await run.begin()
    busy = await run.both.env.post("/v1/sessions", json={"run": RUN})
    assert (busy.status_code, "no free place" in busy.json()["detail"]) == (429, True)
    await run.both.tell(bad, "end", error="the harness crashed")
    again = await run.begin()
    assert again.session.index == bad.session.index
    with run.both.database.write() as session:
        session.get_one(SessionRow, again.session.id).expires_at = time.time() - 1
    await run.act(good, "left")
    assert (await run.both.tell(good, "reward", score=0.25)).status_code == 200
    await asyncio.wait_for(playing, 5)
    outcomes = {t.index: t.outcome for t in (await run.played()).trajectories}
    assert outcomes[good.session.index or 0].score == 0.25
    lost = outcomes[bad.session.index or 0]
    assert lost.value is lost.score is None
    assert lost.error is not None
    assert "no reward came before it expired" in lost.error.detail


async def test_a_score_is_a_success_from_the_threshold_of_the_family_on(run: Run) -> None:
    run.worker.family = lambda _: cast("EnvironmentFamily", SimpleNamespace(success_at=0.5))
    playing = run.play(run.group())
    made = [await run.begin(), await run.begin()]
    for session, score in zip(made, (0.75, 0.25), strict=True):
        await run.act(session, "left")
        await run.both.tell(session, "reward", score=score)
    await asyncio.wait_for(playing, 5)
    values = {t.index: t.outcome.value for t in (await run.played()).trajectories}
    assert [values[one.session.index or 0] for one in made] == [1, -1]


async def test_rewards_beyond_the_bound_are_refused_and_the_largest_ones_complete_a_group(
    run: Run,
) -> None:
    playing = run.play(run.group())
    made = [await run.begin(), await run.begin()]
    for session, largest in zip(made, (1e12, -1e12), strict=True):
        await run.act(session, "left", "right")
        refused = await run.both.tell(session, "reward", steps={"1": 1e308, "2": 1e308})
        assert refused.status_code == 422
        taken = await run.both.tell(session, "reward", steps={"1": largest, "2": largest})
        assert taken.status_code == 200, taken.text
    await asyncio.wait_for(playing, 5)
    scores = {t.outcome.score for t in (await run.played()).trajectories}
    assert scores == {2e12, -2e12}


async def test_another_worker_goes_on_and_a_group_played_again_begins_anew(run: Run) -> None:
    group = run.group()
    playing = run.play(group)
    one = await run.begin()
    await run.act(one, "left")
    await run.both.tell(one, "reward", success=True)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    playing = run.play(group)
    two = await run.begin()
    await run.act(two, "up")
    assert (await run.both.tell(two, "reward", success=True)).status_code == 200
    await asyncio.wait_for(playing, 5)
    before = await run.played()
    assert all(t.measured for t in before.trajectories)
    await run.both.broker.forget_group("g", [t.id for t in before.trajectories])
    playing = run.play(group)  # other weights had played it
    for made in [await run.begin(), await run.begin()]:
        await run.act(made, "down")
        await run.both.tell(made, "reward", success=False)
    await asyncio.wait_for(playing, 5)
    assert {t.outcome.value for t in (await run.played()).trajectories} == {-1}


async def test_sessions_with_a_key_in_common_share_a_group_and_a_task_may_be_asked_for(
    run: Run,
) -> None:
    both = [run.play(run.group("g")), run.play(run.group("h", task_id=run.tasks[1]))]
    b = await run.begin(group="b", task=run.tasks[1])
    assert b.session.group_id == "h"
    a = await run.begin(group="a")
    assert a.session.group_id == "g"
    assert (await run.begin(group="a")).session.group_id == a.session.group_id
    full = await run.both.env.post("/v1/sessions", json={"run": RUN, "group": "a"})
    assert full.status_code == 429
    await run.both.broker.end_run(RUN)
    await asyncio.wait_for(asyncio.gather(*both), 5)
    state = (await run.both.tell(a, "")).json()
    assert (state["status"], state["reason"]) == ("failed", "its run has ended, or goes on without it")  # fmt: skip
    late = await run.both.tell(a, "reward", score=1.0)
    assert late.status_code == 409


async def test_runs_that_take_no_sessions_say_so(run: Run) -> None:
    unknown = await run.both.env.post("/v1/sessions", json={"run": "run-9"})
    assert (unknown.status_code, "does not exist" in unknown.json()["detail"]) == (404, True)
    with run.both.database.write() as session:
        session.get_one(RunRow, RUN).config = {}
    plain = await run.both.env.post("/v1/sessions", json={"run": RUN})
    assert (plain.status_code, "played_by" in plain.json()["detail"]) == (409, True)
    with run.both.database.write() as session:
        session.get_one(RunRow, RUN).status = "finished"
    over = await run.both.env.post("/v1/sessions", json={"run": RUN})
    assert (over.status_code, "takes no more sessions" in over.json()["detail"]) == (409, True)


async def test_a_session_is_made_once_an_idempotency_key(run: Run) -> None:
    asked = {"Idempotency-Key": "k"}
    made = [await run.both.env.post("/v1/sessions", json={}, headers=asked) for _ in range(2)]
    one, two = (MadeSession.model_validate_json(reply.content) for reply in made)
    assert one.session == two.session
    assert (await run.both.tell(two, "")).status_code == 200
    assert (await run.both.tell(one, "")).status_code == 401  # its key was replaced


@pytest.mark.parametrize(
    "other", [{"tags": {"who": "me"}}, {"lifetime_s": 60}, {"group": "g"}, {"run": RUN}]
)
async def test_an_idempotency_key_with_another_request_is_refused(run: Run, other: Any) -> None:
    asked = {"Idempotency-Key": "k"}
    assert (await run.both.env.post("/v1/sessions", json={}, headers=asked)).status_code == 201
    reply = await run.both.env.post("/v1/sessions", json=other, headers=asked)
    assert (reply.status_code, reply.json()["type"]) == (409, "urn:triforge:conflict")
    assert "another request" in reply.json()["detail"]


async def test_a_worker_whose_clock_is_ahead_expires_no_session(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing, now = run.play(run.group(rollouts=1)), time.time
    made = await run.begin()
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    await asyncio.sleep(0.1)
    await run.act(made, "a")
    assert (await run.both.tell(made, "reward", score=1.0)).status_code == 200
    await playing
    (played,) = (await run.played()).trajectories
    assert played.outcome.error is None
