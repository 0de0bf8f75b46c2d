"""When each process worked on a step."""

from __future__ import annotations

import httpx
import pytest
from markupsafe import escape

from services.dashboard.timeline import idle, lanes
from tests.unit.dashboard.recorded_run import EVIL, MEASURES, RecordedRun, timed
from triforge.types import Span


def span(start: float, end: float, kind: str = "play") -> Span:
    return Span.model_validate({"lane": "a", "kind": kind, "name": "n", "start": start, "end": end})


def test_phases_follow_one_another_and_processes_say_their_own_times() -> None:
    found = {
        (s.lane, s.kind, s.name): (s.start, s.end) for s in timed("run-1-00001-train-0000", 60.0)
    }
    spent = sum(value for name, value in MEASURES.items() if name.startswith("seconds/"))
    assert found["orchestrator", "wait", "play"] == (60.0 - spent, 57.0)
    assert found["orchestrator", "credit", "credit"] == (57.0, 57.5)
    assert found["orchestrator", "wait", "train"] == (57.5, 59.5)
    assert found["orchestrator", "publish", "publish"] == (59.5, 60.0)
    assert found["learner of policy", "train", "policy"] == (57.5, 59.0)
    assert found[f"rollout {EVIL}", "play", "run-1-00001-train-0000-00"] == (52.0, 56.0)
    assert len(found) == 7  # two of the rollouts, and no votes, have a time


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([span(0, 10)], 0.0),
        ([span(0, 2), span(1, 4), span(8, 9)], 0.5),
        ([span(-5, 2), span(9, 20)], 0.7),
        ([span(0, 10, "wait"), span(2, 3)], 0.9),
        ([], 1.0),
    ],
)
def test_idle_is_where_no_span_lies(spans: list[Span], share: float) -> None:
    assert idle(spans, 0.0, 10.0) == pytest.approx(share)


def test_spans_that_overlap_lie_below_one_another() -> None:
    (lane,) = lanes([span(0, 4), span(1, 3), span(4, 9)], 0.0, 10.0)
    assert (lane.spans, lane.idle) == (3, pytest.approx(0.1))
    assert str(lane.picture).count('y="0"') == 2
    assert '<rect class="play" x="60.0" y="6" width="120.0"' in lane.picture


async def test_the_page_names_lanes_and_the_longest_episodes_as_text(
    pages: httpx.AsyncClient, recorded: RecordedRun
) -> None:
    address = f"/runs/{recorded.run_id}/timeline"
    text = (await pages.get(address)).text
    assert "Timeline of step 2" in text
    assert 'rel="prev" href="?step=1"' in text
    assert f'<th scope="row">rollout {escape(EVIL)}</th>' in text
    assert "<img" not in text
    assert f"/rollouts/{recorded.group(2)}-00" in text
    older = await pages.get(f"{address}?step=7")
    assert (older.status_code, "given 7" in older.text) == (404, True)
