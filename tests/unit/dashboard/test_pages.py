"""The pages: what they show, whose key they ask with, and that text stays text."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.dashboard.__main__ import main
from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from tests.unit.dashboard.conftest import trainer_of
from tests.unit.dashboard.recorded_run import RecordedRun, recorded_run
from triforge.config import Settings
from triforge.store.database import Database

GOLDEN = Path(__file__).parents[2] / "contract" / "types"
SERVICES = ("trainer", "env_adapter", "reward", "policy_model", "reward_model", "rewriter_model")
EVIL = '<img src=x onerror="alert(1)">&"\''


def golden(name: str, /, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found | changes


class Deployment(httpx.AsyncBaseTransport):
    """All APIs at once, with canned answers.

    Attributes:
        answers: status and body by path.
        asked: (host and path, query, authorization) of every request.
        down: hosts that do not answer.
        changed: path and body of every request for a change.
    """

    def __init__(self) -> None:
        run = golden("RunState", id="run-1", name="mine", pool_id="pool-1", status="running")
        step = golden("RunStep", run_id="run-1")
        metrics = {"success": 0.25, "eval/sampled": 0.5, "seconds/play": 12.0, "other": 3.0}
        metrics |= {"rate": 1e-6, "policy/tokens": 20.0, "policy/seconds": 1.0}
        steps = [step | {"step": n, "metrics": metrics} for n in range(3)]
        pool = golden("PoolState", id="pool-1", name="kitchen")
        self.answers: dict[str, tuple[int, Any]] = {
            "/readyz": (200, {"status": "ready"}),
            "/v1/runs": (200, {"items": [run], "next_cursor": "run 7"}),
            "/v1/runs/run-1": (200, run),
            "/v1/runs/run-1/steps": (200, {"items": steps}),
            "/v1/runs/run-1/weights": (200, {"items": [golden("WeightsRecord")]}),
            "/v1/pools": (200, {"items": [pool]}),
            "/v1/pools/pool-1": (200, pool),
            "/v1/pools/pool-1/tasks": (200, golden("Page", next_cursor="page 2")),
            "/v1/pools/pool-1/proposals": (200, {"items": [golden("Proposal")]}),
            "/v1/tasks/task-1/lineage": (200, golden("Lineage")),
            "/v1/proposals/p-1": (200, golden("ProposalDetail")),
        }
        self.asked: list[tuple[str, str, str]] = []
        self.down: set[str] = set()
        self.changed: list[tuple[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        where, key = (
            f"{request.url.host}{request.url.path}",
            request.headers.get("authorization", ""),
        )
        self.asked.append((where, request.url.query.decode(), key))
        if request.method == "POST":
            self.changed.append((request.url.path, json.loads(request.content)))
        if request.url.host in self.down:
            raise httpx.ConnectError("refused", request=request)
        if request.url.path.endswith("/events"):
            lines = b'id: 5-0\nevent: step\ndata: {"kind": "step"}\n\n'
            return httpx.Response(200, content=lines, request=request)
        missing = (404, {"detail": "there is no such thing"})
        status, body = self.answers.get(request.url.path, missing)
        return httpx.Response(status, json=body, request=request)

    def refuse(self, path: str, status: int, detail: str) -> None:
        kind = {401: "unauthorized", 403: "forbidden"}[status]
        problem = {"type": f"urn:triforge:{kind}", "status": status, "detail": detail}
        self.answers[path] = (status, problem)


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


@pytest.fixture
async def browser(deployment: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    apis = Apis({name: f"http://{name}" for name in SERVICES}, transport=deployment)
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as client:
        yield client
    await apis.close()


async def test_first_page(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    deployment.down.add("reward_model")
    reply = await browser.get("/")
    assert reply.status_code == 200
    assert '<a href="/runs/run-1">mine</a>' in reply.text
    assert '<a href="/pools/pool-1">kitchen</a>' in reply.text
    assert "no answer (ConnectError)" in reply.text
    assert reply.text.count(">ready<") == len(SERVICES) - 1


async def test_older_runs(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    assert '<a href="?older=run%207">older runs</a>' in (await browser.get("/")).text
    deployment.answers["/v1/runs"] = (200, {"items": []})
    assert "older runs" not in (await browser.get("/?older=run%207")).text
    queries = [query for path, query, _ in deployment.asked if path == "trainer/v1/runs"]
    assert queries == ["limit=50", "limit=50&cursor=run+7"]


async def test_run_page(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    text = (await browser.get("/runs/run-1")).text
    label = "Success: held out, sampled, training tasks, steps 0 to 2"
    assert f'aria-label="{label}"' in text
    assert 'aria-label="Seconds by phase: play, steps 0 to 2"' in text
    assert "judge" in text
    assert '<th scope="row">other</th>' in text
    assert ">1e-06<" in text
    before_folds = text.partition("<details><summary>")[0]
    assert "tokens trained on" in before_folds
    assert golden("WeightsRecord")["uri"] not in before_folds
    assert golden("WeightsRecord")["uri"] in text
    assert 'data-events="/runs/run-1/events"' in text


async def test_a_run_begins_with_its_verdict(
    browser: httpx.AsyncClient, deployment: Deployment
) -> None:
    verdict = golden("Verdict", word="worse", text="worse: by 9 points")
    deployment.answers["/v1/runs/run-1"] = (200, golden("RunState", id="run-1", verdict=verdict))
    text = (await browser.get("/runs/run-1")).text
    place = text.index('<b class="worse">Worse</b>: by 9 points')
    assert text.index("<h1>") < place < text.index("step 7 of 20")
    for part in golden("Verdict")["warnings"] + golden("Verdict")["options"]:
        assert place < text.index(part)
    text = (await browser.get("/")).text  # the list of the API has no verdicts
    assert '<b class="worse">Worse</b>: by 9 points' in text
    assert golden("Verdict")["options"][0] not in text
    unknown = golden("RunState", id="run-1", verdict=golden("Verdict"))
    deployment.answers["/v1/runs/run-1"] = (200, unknown)
    text = (await browser.get("/runs/run-1")).text
    assert '<b class="unknown">Undecided</b>: held-out success' in text


async def test_a_run_of_three_models_shows_each_of_them(deployment: Deployment) -> None:
    run = golden("RunState", id="run-1", status="running", further={"mover": 9})
    metrics = {"policy/grad_norm": 1.0, "mover/grad_norm": 2.0, "staleness/mover/max": 0.0}
    step = golden("RunStep", run_id="run-1", metrics=metrics, further={"mover": 9})
    deployment.answers["/v1/runs"] = (200, {"items": [run]})
    deployment.answers["/v1/runs/run-1"] = (200, run)
    deployment.answers["/v1/runs/run-1/steps"] = (200, {"items": [step]})
    weights = {"items": [golden("WeightsRecord", role="mover", version=9)]}
    deployment.answers["/v1/runs/run-1/weights"] = (200, weights)
    apis = Apis.of(Settings(models="mover=http://mover_model"), transport=deployment)
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as browser:
        text = (await browser.get("/runs/run-1")).text
        assert "<dt>mover version</dt><dd>9</dd>" in text
        assert 'aria-label="Gradient norm: policy, mover, steps 7 to 7"' in text
        assert 'aria-label="Staleness: mover, oldest, steps 7 to 7"' in text
        assert '<th scope="col">mover</th>' in text
        assert '<th scope="row">mover</th><td class="number" data-t="version">9</td>' in text
        asked = next(query for path, query, _ in deployment.asked if path.endswith("/steps"))
        assert "mover%2Fgrad_norm" in asked
        assert "mover 9" in (await browser.get("/")).text
    await apis.close()


async def test_curve_options_and_csv(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    address = f"/runs/{recorded.run_id}"
    plain = (await pages.get(address)).text
    assert 'class="raw' not in plain
    assert "step 2: the judge is being gamed" in plain
    assert "steps 1 to 2: 2 of 8 rollouts were not measured" in plain
    assert "<img" not in plain
    chosen = (await pages.get(f"{address}?smooth=0.9")).text
    assert 'class="raw' in chosen
    assert '<option value="0.9" selected>' in chosen
    assert (await pages.get(f"{address}?smooth=1")).status_code == 422
    file = await pages.get(f"{address}/steps.csv")
    assert file.headers["content-type"].startswith("text/csv")
    first, second = csv.DictReader(file.text.splitlines())
    assert (first["step"], second["step"], second["judge/alarm"]) == ("1", "2", "1.0")
    assert sum(float(v) for name, v in first.items() if name.startswith("rewards/")) == 1.0
    assert (await pages.get("/runs/run-x/steps.csv")).status_code == 404


@pytest.mark.parametrize("player", ["workers", "trainer"])
async def test_of_a_policy_that_another_trainer_has_only_its_rollouts_are_shown(
    tmp_path: Path, empty_store: Path, player: str
) -> None:
    database = Database(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    run = recorded_run(database, tmp_path, env_adapter={"played_by": player})
    apis = Apis(dict.fromkeys(("trainer", "env_adapter"), "http://t"), transport=trainer_of(run))
    app = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(transport=app, base_url="http://dashboard") as http:
        paths = ("", "/rollouts", f"/rollouts/{run.group(1)}-00")
        pages = [(await http.get(f"/runs/{run.run_id}{path}")).text for path in paths]
    await apis.close()
    database.close()
    marks = [
        ('scope="col">policy<', "rows trained on"),
        ("left out of training", 'class="number">stale<'),
        ("/tokens",),
    ]
    for page, of_policy in zip(pages, marks, strict=True):
        assert {mark in page for mark in of_policy} == {player == "workers"}
    assert ("its own trainer" in pages[0]) == (player == "trainer")


async def test_what_a_run_took_is_summed(
    browser: httpx.AsyncClient, deployment: Deployment
) -> None:
    run = golden("RunState", id="run-1", created_at=100.0)
    rows = [golden("RunStep", run_id="run-1", step=n, at=100.0 + 5400.0 * n) for n in (1, 2)]
    metrics = {"failures/KeyError at reward.py:3": 2.0, "eval/failures/timeout": 1.0}
    metrics |= {"tokens": 6e5, "policy/seconds": 45.0, "reward/seconds": 30.0, "policy/tokens": 7.0}
    items = [row | {"metrics": metrics} for row in rows]
    deployment.answers |= {
        "/v1/runs/run-1": (200, run),
        "/v1/runs/run-1/steps": (200, {"items": items}),
    }
    text = (await browser.get("/runs/run-1")).text
    assert "Not measured: 4 KeyError at reward.py:3, 2 timeout." in text
    asked = next(query for path, query, _ in deployment.asked if path.endswith("/steps"))
    assert "failures%2F" in asked
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert facts["time since it was queued"] == "3.0 h"
    assert facts["learners at work"] == "2.5 min"
    assert (facts["tokens sampled"], facts["tokens trained on"]) == ("1,200,000", "14")


async def test_ended_run_is_not_followed(
    browser: httpx.AsyncClient, deployment: Deployment
) -> None:
    ended = golden("RunState", id="run-1", status="failed", reason="the disk is full")
    deployment.answers["/v1/runs/run-1"] = (200, ended)
    deployment.answers["/v1/runs/run-1/steps"] = (200, {"items": []})
    text = (await browser.get("/runs/run-1")).text
    assert "data-events" not in text
    assert "the disk is full" in text
    assert "No step has finished yet." in text


async def test_run_without_training(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    reason = "finished without training: why"
    idle = golden("RunState", id="run-1", status="finished", reason=reason)
    deployment.answers |= {"/v1/runs": (200, {"items": [idle]}), "/v1/runs/run-1": (200, idle)}
    for page in ("/", "/runs/run-1"):
        text = (await browser.get(page)).text
        assert '<span class="state worse">finished</span>' in text
        assert reason in text


async def test_search_in_a_pool(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    reply = await browser.get("/pools/pool-1?search=mug&state=active&rewrites=awaiting&after=c9")
    assert reply.status_code == 200
    queries = {path: query for path, query, _ in deployment.asked}
    assert queries["env_adapter/v1/pools/pool-1/tasks"] == "limit=50&search=mug&state=active"
    assert queries["env_adapter/v1/pools/pool-1/proposals"] == "limit=50&state=awaiting&cursor=c9"
    assert 'href="?search=mug&amp;state=active&amp;cursor=page%202"' in reply.text


async def test_changes_of_a_task(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    lineage = golden("Lineage")
    root = lineage["versions"][0]
    task = golden("Task", id="t0", version=0, parent_id=None, instruction="put a mug in the shelf")
    changed = {
        "id": "t1",
        "version": 1,
        "parent_id": "t0",
        "instruction": "put a hot mug in the fridge",
    }
    measured = [golden("Measurement", successes=1, measured=4)]
    first, second = root | {"task": task}, root | {"task": task | changed, "measurements": measured}
    deployment.answers["/v1/tasks/task-1/lineage"] = (200, lineage | {"versions": [first, second]})
    text = (await browser.get("/tasks/task-1")).text
    assert "put a<ins> hot</ins> mug in the <del>shelf</del><ins>fridge</ins>" in text
    assert "0.250 <small>[0.046, 0.699], 1 of 4</small>" in text


async def test_a_rewrite_of_the_same_sentence_shows_its_parameters(
    browser: httpx.AsyncClient, deployment: Deployment
) -> None:
    before = {"fridge": "closed", "objects": {"mug 1": "fridge"}, "horizon": 14}
    after = {"fridge": "open", "objects": {"mug 1": "fridge", EVIL: "shelf"}, "horizon": 14}
    lineage = golden("Lineage")
    versions = [
        lineage["versions"][0] | {"task": golden("Task", id=name, parent_id=parent, params=params)}
        for name, parent, params in (("t0", None, before), ("t1", "t0", after))
    ]
    same = {"instruction_before": "find it", "instruction_after": "find it", "candidate_id": "t1"}
    detail, path = golden("ProposalDetail"), "/v1/tasks/t1/lineage"
    deployment.answers[path] = (200, lineage | {"versions": versions})
    proposal = detail["proposal"] | same | {"null_control": False}
    deployment.answers["/v1/proposals/p-1"] = (200, detail | {"proposal": proposal})
    deployment.answers["/v1/pools/pool-1/proposals"] = (200, {"items": [proposal]})
    for page in ("/tasks/t1", "/proposals/p-1", "/pools/pool-1"):
        text = (await browser.get(page)).text
        assert "fridge: <del>&#34;closed&#34;</del> <ins>&#34;open&#34;</ins>" in text, page
        assert "onerror=" in text, page
        assert "<img" not in text, page
        assert "<li>horizon" not in text, page
    proposal["null_control"] = True  # its parameters are those of its parent
    assert "<ins>" not in (await browser.get("/proposals/p-1")).text


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([{"score": 0.5, "scored": 8}, {"score": None, "scored": 0}, {"score": 0.25, "scored": 4}], "mean score 0.417 <small>of 12<"),
        ([{"score": None, "scored": 0}], "not measured"),
        ([{"successes": 4, "measured": 8, "score": 0.5, "scored": 8}], "4 of 8</small>"),
    ],
)  # fmt: skip
async def test_a_task_whose_groups_have_scores_shows_their_mean(
    browser: httpx.AsyncClient, deployment: Deployment, rows: list[dict[str, Any]], shown: str
) -> None:
    lineage = golden("Lineage")
    none = {"successes": 0, "measured": 0}
    version = lineage["versions"][0] | {
        "measurements": [golden("Measurement", **none | row) for row in rows]
    }
    deployment.answers["/v1/tasks/task-1/lineage"] = (200, lineage | {"versions": [version]})
    text = (await browser.get("/tasks/task-1")).text
    assert shown in text
    assert ("mean score" in text) == ("mean score" in shown)


async def test_lineage_of_a_task(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    lineage = golden("Lineage")
    child = next(v for v in lineage["versions"] if v["made_by"])
    child["made_by"] |= {"diagnosis": f"it never opens the fridge {EVIL}", "state": "awaiting"}
    child["made_by"] |= {"parent_counts": [[8, 8], [7, 8]], "candidate_counts": [[4, 8], [3, 8]]}
    deployment.answers["/v1/tasks/task-1/lineage"] = (200, lineage)
    text = (await browser.get("/tasks/task-1")).text
    assert text.count("<li id=") == len(lineage["versions"])
    assert "it never opens the fridge" in text
    assert "<img" not in text
    assert "before 0.938 <small>[0.717, 0.989], 15 of 16</small>" in text
    assert "after 0.438 <small>[0.231, 0.668], 7 of 16</small>" in text
    for verb in ("pin", "pause", "approve", "reject", "rollback"):
        assert f'<button name="verb" value="{verb}">' in text, verb
    assert f'name="to" value="{lineage["slot"]}"' in text


OWN = {"origin": "http://dashboard", "content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("form", "asked", "body"),
    [
        ("kind=tasks&id=a%2Fb&verb=pause&reason=x%26y", "/v1/tasks/a/b/pause", {"reason": "x&y"}),
        ("kind=proposals&id=p1&verb=approve&to=t0", "/v1/proposals/p1/approve", {"reason": ""}),
    ],
)
async def test_a_form_of_a_page_changes_what_its_key_may(
    browser: httpx.AsyncClient, deployment: Deployment, form: str, asked: str, body: dict[str, str]
) -> None:
    deployment.answers[asked] = (200, {})
    headers = OWN | {"authorization": basic("tfk_1_ab")}
    reply = await browser.post("/actions", content=form, headers=headers)
    assert (reply.status_code, deployment.changed) == (303, [(asked, body)])
    assert reply.headers["location"] == asked.removeprefix("/v1").rpartition("/")[0].replace(
        "a/b", "a%2Fb"
    )
    assert deployment.asked[-1][2] == "Bearer tfk_1_ab"
    deployment.refuse(asked, 403, "the key may only read")
    reply = await browser.post("/actions", content=form, headers=headers)
    assert (reply.status_code, "may only read" in reply.text) == (401, True)


@pytest.mark.parametrize(
    ("form", "headers", "status"),
    [
        ("kind=tasks&id=t1&verb=pin", {"origin": "http://evil.example"}, 403),
        ("kind=tasks&id=t1&verb=pin", {"origin": ""}, 403),
        ("kind=tasks&id=t1&verb=pin", {"sec-fetch-site": "cross-site"}, 403),
        ("kind=tasks&id=t1&verb=pin", {"content-type": "text/plain"}, 415),
        ("kind=tasks&id=t1&verb=retire", {}, 422),
        ("kind=pools&id=t1&verb=pause", {}, 422),
        ("", {}, 422),
        (b"kind=\xff&id=t1&verb=pin", {}, 422),
    ],
)
async def test_nothing_is_changed_for_another_page_nor_by_what_no_form_sends(
    browser: httpx.AsyncClient,
    deployment: Deployment,
    form: str,
    headers: dict[str, str],
    status: int,
) -> None:
    reply = await browser.post("/actions", content=form, headers=OWN | headers)
    assert (reply.status_code, deployment.changed) == (status, [])


async def test_proposal_page(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    detail = golden("ProposalDetail")
    texts = {name: f"text of the {name}" for name in ("diagnosis", "prompt", "answer")}
    rows = [
        golden("Measurement", purpose="measure_parent", successes=0, measured=8),
        golden("Measurement", purpose="measure_candidate", successes=4, measured=8),
    ]
    changed = detail | {"proposal": detail["proposal"] | texts, "measurements": rows}
    deployment.answers["/v1/proposals/p-1"] = (200, changed)
    text = (await browser.get("/proposals/p-1")).text
    assert all(line in text for line in texts.values())
    assert "0.000 <small>[0.000, 0.324], 0 of 8</small>" in text
    assert "0.500 <small>[0.215, 0.785], 4 of 8</small>" in text
    assert "p = 0.00011 after 2 pairs" in text
    assert 'class="reason"' not in text  # it was accepted
    changed["proposal"] |= {"state": "rejected"}
    assert 'class="reason"' in (await browser.get("/proposals/p-1")).text


async def test_texts_are_never_html(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    run = golden("RunState", id="run-1", name=EVIL, reason=EVIL, config={"run": {"name": EVIL}})
    deployment.answers["/v1/runs/run-1"] = (200, run)
    deployment.answers["/v1/runs"] = (200, {"items": [run]})
    detail = golden("ProposalDetail")
    fields = ("diagnosis", "prompt", "answer", "instruction_before", "instruction_after", "reason")
    proposal = detail["proposal"] | dict.fromkeys(fields, EVIL)
    deployment.answers["/v1/proposals/p-1"] = (200, detail | {"proposal": proposal})
    deployment.answers["/v1/pools/pool-1"] = (200, golden("PoolState", name=EVIL))
    pages = ("/", "/runs/run-1", "/proposals/p-1", "/pools/pool-1", f"/pools/{'%3Cimg%20src=x%3E'}")
    for page in pages:
        reply = await browser.get(page)
        assert "<img" not in reply.text, page
        assert "script-src 'self'" in reply.headers["content-security-policy"]


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (basic("tfk_1_a:b"), "Bearer tfk_1_a:b"),
        ("Bearer tfk_1_ab", "Bearer tfk_1_ab"),
        ("Basic %%%", ""),
        ("", ""),
    ],
)
async def test_the_key_of_the_browser_goes_to_the_apis_and_nowhere_else(
    browser: httpx.AsyncClient, deployment: Deployment, given: str, sent: str
) -> None:
    await browser.get("/", headers={"authorization": given} if given else {})
    keys = {path: key for path, _, key in deployment.asked}
    assert keys["trainer/v1/runs"] == keys["env_adapter/v1/pools"] == sent
    assert {key for path, key in keys.items() if path.endswith("/readyz")} == {""}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_api_that_asks_for_a_key_makes_the_browser_ask(
    browser: httpx.AsyncClient, deployment: Deployment, status: int
) -> None:
    deployment.refuse("/v1/runs", status, "a key is needed")
    reply = await browser.get("/")
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"].startswith("Basic ")
    assert "a key is needed" in reply.text


async def test_error_pages(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    missing = await browser.get("/runs/no-such")
    assert (missing.status_code, "there is no such thing" in missing.text) == (404, True)
    assert (await browser.get("/nothing")).status_code == 404
    malformed = await browser.get("/runs/run-1/events?after=now")
    assert (malformed.status_code, "after" in malformed.text) == (422, True)
    deployment.down.add("trainer")
    away = await browser.get("/")
    assert (away.status_code, "trainer" in away.text) == (503, True)
    assert (await browser.get("/runs/run-1/events")).text == ""  # the browser asks again
    assert (await browser.post("/")).status_code == 405


async def test_events_of_a_run(browser: httpx.AsyncClient, deployment: Deployment) -> None:
    reply = await browser.get("/runs/run-1/events", headers={"last-event-id": "7-1"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text == 'id: 5-0\nevent: step\ndata: {"kind": "step"}\n\n'
    assert deployment.asked[-1][:2] == ("trainer/v1/runs/run-1/events", "after=7-1")
    await browser.get("/runs/run-1/events")
    since = deployment.asked[-1][1].removeprefix("after=").removesuffix("-0")
    assert int(since) > 1_700_000_000_000


async def test_style_and_script_are_served_and_nothing_else(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/assets/style.css")).headers["content-type"].startswith("text/css")
    assert "EventSource" in (await browser.get("/assets/live.js")).text
    for name in ("base.html", "..%2Fpages.py", "%2e%2e"):
        assert (await browser.get(f"/assets/{name}")).status_code == 404


def test_pages_without_keys_are_not_shown_to_other_machines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRIFORGE_HOST", "0.0.0.0")
    monkeypatch.setenv("TRIFORGE_AUTH", "auto")
    assert main() == 2
    assert "TRIFORGE_HOST: given '0.0.0.0'" in caplog.text
