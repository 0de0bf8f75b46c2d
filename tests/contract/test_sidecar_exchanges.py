"""Recorded exchanges of real trainers with the sidecar, by `python -m scripts.sidecar_conformance --record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from triforge.sidecar import Sidecar
from triforge.sidecar.client import Rollout
from triforge.types import Draw, DrawRequest, Report, ReportReply

EXCHANGES = sorted((Path(__file__).parent / "sidecar").glob("*.json"))
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "draw": (DrawRequest, Draw),
    "rollouts": (Report, ReportReply),
}


@pytest.mark.parametrize("file", EXCHANGES, ids=lambda file: file.stem)
def test_the_messages_are_those_of_the_types(file: Path) -> None:
    for one in json.loads(file.read_text()):
        request, reply = KINDS[one["path"].rpartition("/")[2]]
        for kind, message in ((request, one["body"]), (reply, one["reply"])):
            read = kind.model_validate_json(json.dumps(message))
            assert kind.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize("file", EXCHANGES, ids=lambda file: file.stem)
def test_the_client_sends_and_reads_what_was_recorded(file: Path) -> None:
    draw, report = json.loads(file.read_text())
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        first = len(sent) == 1
        return httpx.Response(200, json=draw["reply"] if first else report["reply"])

    with Sidecar("http://there", "kitchen", transport=httpx.MockTransport(answer)) as sidecar:
        tasks = sidecar.draw(len(draw["reply"]["tasks"]))
        rollouts = [Rollout(**one) for one in report["body"]["rollouts"]]
        credits = sidecar.report(rollouts, policy_version=report["body"]["policy_version"])
    assert sent[1] == report["body"]
    assert [task.rollouts for task in tasks] == [
        tuple(one["rollouts"]) for one in draw["reply"]["tasks"]
    ]
    for rollout, credit, one in zip(rollouts, credits, report["reply"]["rollouts"], strict=True):
        answers = [message for message in rollout.messages if message["role"] == "assistant"]
        assert len(credit.votes) == len(credit.advantages) == len(answers)
        assert credit.reward == one["credit"]["reward"]
