"""Labels of steps: the trainer's routes of them, and the page on which a person gives them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from services.trainer.runs.labels import KnownLabel, labels_after, put, sureness
from tests.unit.dashboard.conftest import trainer_of
from tests.unit.dashboard.recorded_run import RecordedRun
from triforge.errors import InputError
from triforge.types import StepLabel

FORM = {"origin": "http://dashboard", "content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def http(own: RecordedRun) -> AsyncIterator[httpx.AsyncClient]:
    base = f"http://trainer/v1/runs/{own.run_id}"
    async with httpx.AsyncClient(transport=trainer_of(own), base_url=base) as client:
        yield client


@pytest.fixture
async def browser(own: RecordedRun) -> AsyncIterator[httpx.AsyncClient]:
    apis = Apis(dict.fromkeys(("trainer", "env_adapter"), "http://trainer"), transport=trainer_of(own))  # fmt: skip
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as client:
        yield client
    await apis.close()


def label(trajectory: str, step: int, value: int, by: str = "") -> dict[str, Any]:
    return {"trajectory": trajectory, "step": step, "label": value, "by": by}


async def test_labels_are_stored_once_and_the_latest_of_a_source_counts(
    http: httpx.AsyncClient, own: RecordedRun
) -> None:
    first = f"{own.group(1)}-00"
    body = {"labels": [label(first, 0, 1, "a"), label(first, 0, -1, "b"), label(first, 2, 1)]}
    sent = await http.post("/labels", json=body)
    assert sent.status_code == 200, sent.text
    listed = (await http.get("/labels")).json()
    assert listed == sent.json()
    assert (await http.post("/labels", json=body)).json() == listed, "the same once more"
    await http.post("/labels", json={"labels": [label(first, 0, -1, "a")]})
    items = (await http.get("/labels")).json()["items"]
    assert [(one["step"], one["label"], one["by"]) for one in items] == [
        (0, -1, "b"), (2, 1, ""), (0, -1, "a"),
    ]  # fmt: skip
    page = (await http.get("/labels?limit=2")).json()
    rest = (await http.get("/labels", params={"cursor": page["next_cursor"]})).json()
    assert (page["items"] + rest["items"], rest["next_cursor"]) == (items, None)


async def test_labels_of_what_no_judge_is_trained_on_are_refused_together(
    http: httpx.AsyncClient, own: RecordedRun
) -> None:
    good, name = label(f"{own.group(1)}-00", 0, 1), f"{own.group(1)}-01"
    for wrong, field in (
        (label("x", 0, 1), "labels[1].trajectory"),
        (label(f"{own.group(2, purpose='evaluate')}-00", 0, 1), "labels[1].trajectory"),
        (label(name, 2, 1), "labels[1].step: given 2, expected 0 to 1"),
        (label(name, 0, 0), "label"),
        (label(name, 0, 1) | {"colour": 1}, "colour"),
        (label(name, 0, 1, "b" * 101), "by"),
    ):
        reply = await http.post("/labels", json={"labels": [good, wrong]})
        assert (reply.status_code, reply.json()["type"]) == (422, "urn:triforge:input"), wrong
        assert field in reply.json()["detail"]
    for count in (0, 1001):
        assert (await http.post("/labels", json={"labels": [good] * count})).status_code == 422
    assert (await http.get("/labels")).json()["items"] == []
    assert (await http.get("/labels?cursor=x")).status_code == 422


def test_sources_that_disagree_are_counted_and_the_newest_breaks_a_tie(own: RecordedRun) -> None:
    name, other = f"{own.group(1)}-00", f"{own.group(2)}-00"

    def give(step: int, value: Any, by: str, trajectory: str = name) -> None:
        put(own.store, own.run_id, [StepLabel(trajectory=trajectory, step=step, label=value, by=by)])  # fmt: skip

    give(0, 1, "a")
    give(0, -1, "b")
    give(1, 1, "a")
    assert labels_after(own.store, own.run_id, 0) == [
        KnownLabel(name, 1, 0, -1, 2), KnownLabel(name, 1, 1, 1, 3),
    ]  # fmt: skip
    give(0, 1, "c")
    give(2, -1, "a", other)
    found = labels_after(own.store, own.run_id, 3)
    assert found == [
        KnownLabel(name, 1, 0, 1, 4), KnownLabel(name, 1, 1, 1, 3), KnownLabel(other, 2, 2, -1, 5),
    ], "all labels of a rollout that has a new one"  # fmt: skip
    assert labels_after(own.store, own.run_id, 5) == []
    with pytest.raises(InputError):
        give(9, 1, "a")


def votes(*given: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"value": value, "logprobs": [-9.0] * 8 + [math.log(p)] + [0.0] * 7} for value, p in given]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sure"),
    [
        ([(1, 0.5)], 0.0),
        ([(-1, 0.9)], 0.8),
        ([(0, 0.9)], 0.0),
        ([(1, 0.5), (-1, 0.9)], 0.0),
        ([(1, 0.5), (1, 0.5), (1, 0.5), (-1, 0.5)], 0.5),
        ([(1, 0.5), (1, 0.5)], 1.0),
    ],
)
def test_a_judge_is_unsure_where_votes_are_split_or_one_vote_was_a_toss(
    given: list[tuple[int, float]], sure: float
) -> None:
    assert sureness(votes(*given)) == pytest.approx(sure)


async def test_unsure_steps_come_newest_first_and_go_when_they_are_labelled(
    http: httpx.AsyncClient, own: RecordedRun
) -> None:
    rows, cursor = list[dict[str, Any]](), ""
    while cursor is not None:
        page = (await http.get("/unsure", params={"limit": 5, "cursor": cursor})).json()
        assert len(page["items"]) <= 5
        rows, cursor = rows + page["items"], page["next_cursor"]
    places = [(row["summary"]["id"], row["step"]["step_index"]) for row in rows]
    assert len({*places}) == len(places) == 28, (
        "seven judged steps in each of two groups of two steps"
    )
    order = [(-row["summary"]["step"], row["sureness"]) for row in rows]
    assert order == sorted(order)
    assert (rows[0]["sureness"], rows[0]["before"]) == (0.0, ["look"])
    assert rows[0]["summary"]["purpose"] == "train"
    name, step = places[0]
    await http.post("/labels", json={"labels": [label(name, step, 1)]})
    left = (await http.get("/unsure?limit=100")).json()
    assert [(r["summary"]["id"], r["step"]["step_index"]) for r in left["items"]] == places[1:]
    assert left["next_cursor"] is None


async def test_a_person_labels_steps_on_a_page(
    browser: httpx.AsyncClient, http: httpx.AsyncClient, own: RecordedRun
) -> None:
    address = f"/runs/{own.run_id}/labels?by=anna+%26+bo"
    text = (await browser.get(address)).text
    assert text.count('<form method="post" action="/labels"') == 10
    assert 'name="by" value="anna &amp; bo"' in text
    assert "<img" not in text
    assert (
        f'<a href="/runs/{own.run_id}/labels">' in (await browser.get(f"/runs/{own.run_id}")).text
    )
    name = f"{own.group(2)}-00"
    form = {"run": own.run_id, "trajectory": name, "step": "1", "label": "-1", "by": "anna & bo", "cursor": ""}  # fmt: skip
    reply = await browser.post("/labels", data=form, headers=FORM)
    assert reply.status_code == 303
    assert (await browser.get(reply.headers["location"])).text.count('<form method="post"') == 10
    (kept,) = (await http.get("/labels")).json()["items"]
    assert kept | {"at": 0} == label(name, 1, -1, "anna & bo") | {"at": 0}
    for changed, headers, status in (
        ({"label": "2"}, {}, 422),
        ({"step": "x"}, {}, 422),
        ({"trajectory": "x"}, {}, 422),
        ({}, {"origin": "http://evil.example"}, 403),
    ):
        reply = await browser.post("/labels", data=form | changed, headers=FORM | headers)
        assert reply.status_code == status, changed
    assert len((await http.get("/labels")).json()["items"]) == 1
