"""Another trainer over the sidecar: draws, reports, credit, adaptation, a judge that is trained, and deaths in between."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from tests.service.fake_loop import until
from tests.service.sidecar_services import Deployment, deployment_of
from tests.service.sidecar_trainer import FakeTrainer
from triforge.sidecar import RefusedError, Rollout
from triforge.store.step_records import read_step_records
from triforge.store.tables import SessionGroupRow, SessionRow


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployment_of(tmp_path) as made:
        yield made


async def thread(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(call, *given, **named), 60)


async def test_the_band_moves_a_rewrite_is_accepted_and_the_judge_is_trained(
    there: Deployment,
) -> None:
    run = there.submit()
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        tasks, rollouts, credits = await thread(trainer.step, 3)
        assert [len(task.rollouts) for task in tasks] == [4, 4, 4]
        for rollout, credit in zip(rollouts, credits, strict=True):
            answers = [m for m in rollout.messages if m["role"] == "assistant"]
            assert [len(votes) for votes in credit.votes] == [1] * len(answers)
            assert None not in credit.rewards
        before = await thread(sidecar.curriculum)
        assert before["run_id"] == run.id
        async with asyncio.timeout(60):
            while (now := await thread(sidecar.curriculum))["proposals"].get("accepted", 0) < 1:
                await thread(trainer.step, 3)
        assert now["band"] != before["band"]
        assert now["versions"]["policy"] > 0
        assert now["versions"]["reward"] > before["versions"]["reward"]
        slots = {one["slot"] for one in now["newest"] if one["state"] == "accepted"}
        async with asyncio.timeout(60):
            while not slots:
                for task in (await thread(trainer.step, 3))[0]:
                    slots -= {task.task["slot"]} if task.task["version"] else set()
    assert there.store.get(run.id).status == "running", there.store.get(run.id).reason


async def test_a_repeated_report_has_the_same_answer_which_is_the_record_of_the_step(
    there: Deployment,
) -> None:
    run = there.submit()
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        _, rollouts, credits = await thread(trainer.step, 3)
        await until(lambda: there.store.get(run.id).step == 1)
        (done,) = [step for step in there.store.steps(run.id) if step.step == 1]
        again = await thread(sidecar.report, rollouts, policy_version=0)
        assert again == credits
        rows = read_step_records(there.artifacts, done.artifacts["step_record"])
        with there.database.read() as session:
            places = {
                p.id: f"{p.group_id}-{p.index:02d}" for p in session.scalars(select(SessionRow))
            }
        of = {name: [r for r in rows if r["trajectory_id"] == name] for name in places.values()}
        for rollout, credit in zip(rollouts, credits, strict=True):
            recorded = of[places[rollout.id]]
            assert [row["reward"] for row in recorded] == credit.rewards
            assert [[v["value"] for v in row["votes"]] for row in recorded] == credit.votes
            answers = [m["content"] for m in rollout.messages]
            assert [row["next_observation"] for row in recorded] == answers[2::2]
        other = [Rollout(each.id, each.messages, success=not each.success) for each in rollouts]
        for changed in ({"rollouts": other, "policy_version": 0}, {"rollouts": rollouts, "policy_version": 1}):  # fmt: skip
            with pytest.raises(RefusedError, match="reported before"):
                await thread(sidecar.report, **changed)
        with pytest.raises(RefusedError, match="does not exist"):
            await thread(sidecar.report, [Rollout("0" * 12, error="x")], policy_version=1)


async def test_the_same_lease_draws_the_same_tasks_and_one_that_is_over_gives_them_to_others(
    there: Deployment,
) -> None:
    async with httpx.AsyncClient(base_url=there.url) as http:
        draw = "/v1/pools/kitchen/draw"
        none = await http.post(draw, json={"n": 2})
        assert (none.status_code, "triforge run start" in none.json()["detail"]) == (409, True)
        there.submit()
        with there.client() as sidecar:
            first = await thread(sidecar.draw, 6)  # both rounds
            busy = await http.post(draw, json={"n": 1}, headers={"idempotency-key": "k"})
            assert (busy.status_code, "retry-after" in busy.headers) == (429, True)
            with there.database.write() as session:
                for row in session.scalars(select(SessionRow)):
                    row.expires_at -= 301.0
            again = await thread(sidecar.draw, 6)
            assert {t.group_id for t in again} == {t.group_id for t in first}
            late = [Rollout(name, error="x") for name in first[0].rollouts]
            with pytest.raises(RefusedError, match="is over"):
                await thread(sidecar.report, late, policy_version=1)
            played = await thread(FakeTrainer(sidecar).play, again)
            assert len(played) == 24
            await thread(sidecar.report, played, policy_version=1)
        asked = {"json": {"n": 1}, "headers": {"idempotency-key": "k"}}
        await until(lambda: there.free() > 0)
        one = await http.post(draw, **asked)
        two = await http.post(draw, **asked)
        assert one.json()["tasks"] == two.json()["tasks"] != []


async def test_a_group_waits_for_all_of_its_rollouts_and_errors_are_not_measured(
    there: Deployment,
) -> None:
    there.submit()
    with there.client() as sidecar:
        (task,) = await thread(sidecar.draw, 1)
        one, two, *others = await thread(FakeTrainer(sidecar).play, [task])
    async with httpx.AsyncClient(base_url=there.url) as http:

        async def report(*rollouts: Any, wait_s: float = 0.0) -> httpx.Response:
            answers = [vars(each) for each in rollouts]
            body = {"policy_version": 3, "wait_s": wait_s, "rollouts": answers}
            return await http.post("/v1/pools/kitchen/rollouts", json=body)

        while not (waits := await report(one, wait_s=0.3)).json()["rollouts"][0]["credit"]["steps"]:
            pass  # until it is judged
        assert (waits.status_code, waits.json()["complete"]) == (202, False)
        assert waits.json()["rollouts"][0]["credit"]["steps"][0]["reward"] is None
        failed = [Rollout(each.id, error="the simulator died") for each in others]
        whole = await report(one, two, *failed, wait_s=20.0)
        assert (whole.status_code, whole.json()["complete"]) == (200, True)
        rewards = [each["credit"]["reward"] for each in whole.json()["rollouts"]]
        assert [reward is None for reward in rewards] == [False, False, True, True]
        (group,) = whole.json()["groups"]
        assert (group["successes"], group["measured"], group["direction"]) == (2, 2, "harder")


async def test_groups_of_which_nothing_is_measured_make_no_step_and_are_drawn_again(
    there: Deployment,
) -> None:
    run = there.submit(adaptation={"controller": "none"})
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        await thread(trainer.step, 3)
        await until(lambda: there.store.get(run.id).step == 1)
        tasks = await thread(sidecar.draw, 6)  # a staleness bound of 1: two rounds
        lost = [Rollout(name, error="cancelled") for task in tasks for name in task.rollouts]
        body = {"policy_version": 1, "wait_s": 0.5, "rollouts": [vars(each) for each in lost]}
        async with httpx.AsyncClient(base_url=there.url) as http:
            while (answer := await http.post("/v1/pools/kitchen/rollouts", json=body)).status_code != 200:  # fmt: skip
                assert answer.status_code == 202, answer.text
        assert {each["credit"]["reward"] for each in answer.json()["rollouts"]} == {None}
        again = await thread(sidecar.draw, 3)
        assert {task.group_id for task in again} < {task.group_id for task in tasks}
        assert there.store.get(run.id).step == 1
        rollouts = await thread(trainer.play, again)
        credits = await thread(sidecar.report, rollouts, policy_version=2)
        assert None not in {credit.reward for credit in credits}
        await until(lambda: there.store.get(run.id).step == 2)
    assert there.store.get(run.id).status == "running", there.store.get(run.id).reason


async def test_a_report_does_not_wait_for_a_run_that_has_ended(there: Deployment) -> None:
    run = there.submit()
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        _, rollouts, credits = await thread(trainer.step, 3)
        (task,) = await thread(sidecar.draw, 1)
        part = (await thread(trainer.play, [task]))[:1]
        body = {"policy_version": 7, "wait_s": 0.0, "rollouts": [vars(part[0])]}
        async with httpx.AsyncClient(base_url=there.url) as http:
            waits = await http.post("/v1/pools/kitchen/rollouts", json=body)
            assert waits.status_code == 202
            there.store.request_stop(run.id)
            await until(lambda: there.store.get(run.id).status == "stopped")
            refused = await http.post("/v1/pools/kitchen/rollouts", json=body)
        assert refused.status_code == 409, refused.text
        assert "triforge run start" in refused.json()["detail"]
        assert await thread(sidecar.report, rollouts, policy_version=0) == credits


async def test_both_tasks_of_a_pair_that_measures_a_rewrite_are_drawn(there: Deployment) -> None:
    there.submit()
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        versions: dict[str, set[int]] = defaultdict(set)
        while not any(len(own) == 2 for own in versions.values()):
            for task in (await thread(trainer.step, 3))[0]:
                if task.proposal_id:
                    versions[task.proposal_id].add(task.task["version"])
    assert {0, 1} in versions.values()


@pytest.mark.parametrize("emptied", [False, True], ids=["redis stays", "redis is lost"])
async def test_a_sidecar_that_dies_between_draw_and_report_loses_nothing(
    there: Deployment, emptied: bool
) -> None:
    run = there.submit()
    with there.client() as sidecar:
        trainer = FakeTrainer(sidecar)
        await thread(trainer.step, 3)
        rollouts = await thread(trainer.play, await thread(sidecar.draw, 3))
        await there.kill()
        if emptied:
            there.empty()
        waiting = asyncio.create_task(thread(sidecar.report, rollouts, policy_version=9))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await there.start()
        credits = await waiting
        assert all(credit.reward is not None for credit in credits)
        await there.kill()  # and once more: what was answered stays
        await there.start()
        assert await thread(sidecar.report, rollouts, policy_version=9) == credits
        async with asyncio.timeout(60):
            while there.store.get(run.id).step < 3:
                await thread(trainer.step, 3)
    with there.database.read() as session:
        rows = session.scalars(select(SessionRow)).all()
        attempts = [group.attempt for group in session.scalars(select(SessionGroupRow))]
    assert len(rows) == len({(row.group_id, row.index) for row in rows})
    assert {*attempts} == {1}
