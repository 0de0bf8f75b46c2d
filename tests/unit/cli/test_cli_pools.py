"""`triforge pool`, `triforge task` and `triforge proposal`: what they ask of the API, and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import POOL, Services, Triforge


def test_a_pool_is_created_listed_and_shown(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    body = {"generate": {"count": 3}}
    (tmp_path / "pool.json").write_text(json.dumps(body))
    services.say("POST /v1/pools", POOL, status=201)
    code, out, err = triforge("pool", "create", "kitchen", "-f", "pool.json")
    assert (code, json.loads(out)["id"], err) == (0, "pool-1", "")
    assert services.asked[-1][1] == body | {"name": "kitchen", "environment": "household"}
    services.say("GET /v1/pools/kitchen", POOL)
    code, out, _ = triforge("pool", "show", "kitchen")
    assert (code, json.loads(out)) == (0, POOL.model_dump(mode="json"))
    services.say("GET /v1/pools", json.dumps({"items": [POOL.model_dump(mode="json")]}))
    assert json.loads(triforge("pool", "list")[1])["name"] == "kitchen"


def test_every_bad_row_of_a_pool_is_printed(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    (tmp_path / "pool.json").write_text('{"tasks": []}')
    services.refuse("POST /v1/pools", 422, "input", "2 bad rows", "tasks.0: a", "tasks.7: [b]")
    code, out, err = triforge("pool", "create", "kitchen", "-f", "pool.json")
    assert (code, out) == (1, "")
    assert err.splitlines() == ["triforge: 2 bad rows", "  - tasks.0: a", "  - tasks.7: [b]"]


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_pool_file_that_is_none_is_refused_before_anybody_is_asked(
    triforge: Triforge, services: Services, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "pool.json").write_text(content)
    code, _, err = triforge("pool", "create", "kitchen", "-f", "pool.json")
    assert (code, err.startswith("triforge: pool file pool.json: ")) == (1, True)
    assert services.asked == []


WHO = {"by": "dana", "reason": "a test"}
FLAGS = ("--by", "dana", "--reason", "a test")
STORY = Path(__file__).parents[2] / "contract" / "types"
SLOT = "t-5b1e0c9d7a42-t000017"
PROPOSAL = "prop-0d6c1f52a9e34b7788c1"


def golden(name: str) -> str:
    return (STORY / f"{name}.json").read_text()


@pytest.mark.parametrize(
    ("command", "asked", "body", "answer"),
    [
        *(
            (f"{kind} {verb} x", f"POST /v1/{kind}s/x/{verb}", {}, answer)
            for kind, answer, verbs in (
                ("pool", "PoolState", ("pause", "resume", "retire")),
                ("task", "TaskDetail", ("pin", "unpin", "pause", "resume", "retire")),
                ("proposal", "ProposalDetail", ("approve", "reject")),
            )
            for verb in verbs
        ),
        ("pool approval p manual", "PATCH /v1/pools/p", {"approval": "manual"}, "PoolState"),
        ("task rollback t --to s", "POST /v1/tasks/t/rollback", {"to": "s"}, "TaskDetail"),
    ],
)
def test_a_change_is_sent_with_who_and_why(
    triforge: Triforge,
    services: Services,
    command: str,
    asked: str,
    body: dict[str, str],
    answer: str,
) -> None:
    services.say(asked, golden(answer))
    code, out, err = triforge(*command.split(), *FLAGS)
    assert (code, err, json.loads(out)) == (0, "", json.loads(golden(answer)))
    assert services.asked == [(asked, body | WHO)]


def test_tasks_and_rewrites_are_shown(triforge: Triforge, services: Services) -> None:
    services.say("GET /v1/tasks/t", golden("TaskDetail"))
    assert json.loads(triforge("task", "show", "t")[1])["task"]["id"] == f"{SLOT}-v1"
    services.say("GET /v1/pools/p/tasks", f'{{"items": [{golden("Task")}]}}')
    assert triforge("task", "list", "p")[1].startswith(f"{SLOT}")
    services.say("GET /v1/proposals/r", golden("ProposalDetail"))
    assert json.loads(triforge("proposal", "show", "r")[1])["proposal"]["id"] == PROPOSAL
    services.say("GET /v1/pools/p/proposals", f'{{"items": [{golden("Proposal")}]}}')
    assert triforge("proposal", "list", "p", "--only", "accepted")[1].splitlines()[0] == (
        f"{PROPOSAL} accepted harder: 'put some mug in shelf' -> 'put clean mug in shelf'"
    )


def test_a_lineage_is_drawn_as_a_tree(triforge: Triforge, services: Services) -> None:
    services.say(f"GET /v1/tasks/{SLOT}/lineage", golden("Lineage"))
    code, out, _ = triforge("task", "lineage", SLOT)
    assert (code, out.splitlines()) == (
        0,
        [
            f"{SLOT} (replaced; 23 of 24): put some mug in shelf",
            f"└── {SLOT}-v1 (active; 4 of 16): put clean mug in shelf",
        ],
    )


def test_a_lineage_says_mean_scores_where_there_is_no_success(
    triforge: Triforge, services: Services
) -> None:
    lineage = json.loads(golden("Lineage"))
    none = {"successes": 0, "measured": 0}
    for version, score in zip(lineage["versions"], (0.25, None), strict=True):
        for row in version["measurements"]:
            row |= none | {"score": score, "scored": 0 if score is None else 8}
    services.say(f"GET /v1/tasks/{SLOT}/lineage", json.dumps(lineage))
    first, second = triforge("task", "lineage", SLOT)[1].splitlines()
    assert "(replaced; mean score 0.250 of 24)" in first
    assert "(active; not measured)" in second


def test_a_pool_is_exported_whole_or_not_at_all(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    services.answers["GET /v1/pools/p/export"] = (200, "application/x-ndjson", b'{"a": 1}\n')
    assert triforge("pool", "export", "p", "-o", "p.jsonl") == (0, "wrote p.jsonl\n", "")
    assert (tmp_path / "p.jsonl").read_text() == '{"a": 1}\n'
    code, _, err = triforge("pool", "export", "q", "-o", "q.jsonl")
    assert (code, "404" in err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.jsonl"]
