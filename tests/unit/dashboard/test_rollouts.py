"""The pages of rollouts, over the trainer's own routes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import httpx

from services.dashboard.apis import Visit
from services.dashboard.rollouts import group as group_page
from services.dashboard.rollouts import parts, tokens_of
from tests.unit.dashboard.recorded_run import RecordedRun
from triforge.types import Page, RunState, TrajectoryRecord

TYPES = Path(__file__).parents[2] / "contract" / "types"


async def test_filters_in_the_address(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    path = f"/runs/{recorded.run_id}/rollouts"
    text = (await pages.get(path, params={"sort": "-step"})).text
    assert "18 rollouts" in text
    assert text.count('<th scope="row" class="id">') == 18
    address, count = re.findall(r'18 rollouts, <a href="([^"]*)">(\d+) of training tasks', text)[0]
    training = (await pages.get(path + address.replace("&amp;", "&"))).text
    assert (0 < int(count) < 18, f"{count} rollouts" in training) == (True, True)
    assert "of training tasks" not in training
    found = await pages.get(
        path, params={"step": "1", "against": "true", "kind": "", "search": " "}
    )
    assert "2 rollouts" in found.text
    assert 'href="?step=1&amp;against=true"' in found.text  # what is saved as a link
    assert 'name="step" value="1"' in found.text
    refused = await pages.get(path, params={"step": "first"})
    assert (refused.status_code, "step" in refused.text) == (422, True)
    assert (await pages.get("/runs/run-x/rollouts")).status_code == 404


async def test_the_first_page_shows_what_is_odd_about_training_rollouts(
    pages: httpx.AsyncClient, recorded: RecordedRun
) -> None:
    path = f"/runs/{recorded.run_id}/rollouts"
    text = (await pages.get(path)).text
    kinds = re.findall(
        r'scope="rowgroup" colspan="11">([a-z, ]+) <a href="([^"]*)">all (\d+)', text
    )
    assert ("votes against the outcome", "4") in [(name, total) for name, _, total in kinds]
    assert ("not measured", "4") in [(name, total) for name, _, total in kinds]
    assert "-evaluate-" not in text
    for name, address, total in kinds:
        shown = (await pages.get(path + address.replace("&amp;", "&"))).text
        assert f"{total} rollout" in shown, name
        assert f"<h1>{name.capitalize()}</h1>" in shown
    empty = recorded.store.create(name="empty", pool_id="p", config={}).id
    assert "when their step has finished" in (await pages.get(f"/runs/{empty}/rollouts")).text


async def test_rollout_page(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    group = recorded.group(1)
    path = f"/runs/{recorded.run_id}/rollouts/{group}"
    text = (await pages.get(f"{path}-01")).text
    assert "Rollout 2 of 4" in text
    assert f'rel="prev" href="{group}-00"' in text
    assert f'rel="next" href="{group}-02"' in text
    assert "against the outcome" in text
    assert text.count("<code>good</code>") == 4
    assert "take cup" in text
    never = (await pages.get(f"{path}-03")).text
    assert "Not measured: it broke" in never
    assert "No turn is on record." in never


async def test_group_page(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    text = (await pages.get(f"/runs/{recorded.run_id}/groups/{recorded.group(2)}")).text
    assert text.count('<th scope="col"><a href="../rollouts/') == 4
    assert re.findall(r'<tr id="turn-(\d)" class="first">', text) == ["1"]
    assert text.count('class="parts"') == 3


async def test_token_page(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    path = f"/runs/{recorded.run_id}/rollouts/{recorded.group(1)}-02/tokens"
    for by in ("sampled", "training", "ratio", "mask", "version", "nonsense"):
        for form in ("", "table"):
            reply = await pages.get(path, params={"by": by, "form": form})
            assert reply.status_code == 200
            assert reply.text.count('<span class="token') == 2
            assert "No log-probability at training is on record" in reply.text
    assert "<details><summary>prompt, 2 tokens</summary><pre>w95 w96</pre>" in reply.text
    path = f"/runs/{recorded.run_id}/rollouts/{recorded.group(1)}-00/tokens?by=ratio"
    text = (await pages.get(path)).text
    assert "sampled -0.5, training -0.4, ratio 1.105," in text
    assert "No log-probability at training" not in text


async def test_texts_are_never_html(pages: httpx.AsyncClient, recorded: RecordedRun) -> None:
    run, group = recorded.run_id, recorded.group(1)
    rollout = f"rollouts/{group}-02"
    for path in ("rollouts", rollout, f"{rollout}/tokens", f"groups/{group}"):
        reply = await pages.get(f"/runs/{run}/{path}")
        assert reply.status_code == 200, reply.text
        assert "<img" not in reply.text, path
        assert "onerror=&#34;alert" in reply.text, path
        assert " style=" not in reply.text, path  # the policy forbids it
    found = await pages.get(
        f"/runs/{run}/rollouts", params={"search": '"><script>alert(1)</script>'}
    )
    assert "<script>alert" not in found.text


def test_rollouts_part_where_those_that_did_the_same_do_something_else() -> None:
    assert parts([["a", "b"], ["a", "c", "d"], ["a", "c", "e"], ["x"]]) == [
        [True, True, True, True], [True, True, True, False], [False, True, True, False],
    ]  # fmt: skip
    assert parts([["a"], ["a"]]) == [[False, False]]
    assert parts([["a", "b"], ["a"]]) == [[False, False], [False, False]]  # an end is no action
    assert parts([[], []]) == []


def test_a_token_has_its_ratio_where_training_is_on_record() -> None:
    step = {
        "response_ids": [7, 8], "response_logprobs": [-1.0, -0.5], "policy_versions": [3, 3], "weight": 1.0,
        "tokens": ["a\n", "b"], "training_logprobs": [-1.0, None],
    }  # fmt: skip
    first, second = tokens_of(step)
    assert (first["text"], first["ratio"], first["weight"]) == ("a↵\n", 1.0, 0.5)
    assert (second["training"], second["ratio"]) == (None, None)


async def test_the_candidates_of_a_tree_stand_side_by_side_with_the_one_that_was_played_on() -> (
    None
):
    def step(candidate: int, action: str, **more: Any) -> dict[str, Any]:
        return {
            "state": "0/planner/ab", "agent_id": "planner", "chosen": candidate == 1, "action": action,
            "action_valid": True, "advantage": float(candidate), "reason": "", "votes": [],
        } | more  # fmt: skip

    class Recorded:
        async def read(self, kind: Any, *_: Any) -> Any:
            if kind is RunState:
                return RunState.model_validate_json((TYPES / "RunState.json").read_text())
            record = TrajectoryRecord.model_validate_json(
                (TYPES / "TrajectoryRecord.json").read_text()
            )
            columns = [[step(n, "north" if n else "south")] for n in range(2)]
            items = tuple(record.model_copy(update={"steps": tuple(own)}) for own in columns)
            return Page[TrajectoryRecord](items=items)

    text = await group_page("r", "g", cast(Visit, Recorded()))
    assert "a candidate a column" in text
    assert text.count("played on: ") == 1
    assert "0 planner" in text
    assert "They part" not in text
