"""When each process worked on a step: a lane a process, how idle it was, and the longest episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from services.dashboard.apis import Apis
from triforge.clients.transport import segment
from triforge.types import RunState, Span, Timeline

_WIDTH, _ROW = 600, 6
_ROWS: Final = 10  # of a lane; what more is done at a time lies upon the last
_LONGEST: Final = 10
KINDS: Final = {
    "play": "plays", "judge": "judges", "train": "trains", "publish": "publishes", "credit": "credits", "adapt": "sends outcomes",
    "record": "writes the record", "wait": "waits for others",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lane:
    """What one process did: its picture, how many spans, and the share of the step in which it did nothing."""

    name: str
    picture: Markup
    spans: int
    idle: float


class Timelines:
    """The page; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def step(self, key: str, run_id: str, step: int | None) -> str:
        """A step of a run, the newest if none is given."""
        path = f"/v1/runs/{segment(run_id)}"
        run = await self._apis.read(RunState, "trainer", path, key)
        number = max(run.step, 0) if step is None else step
        found = await self._apis.read(Timeline, "trainer", f"{path}/steps/{number}/timeline", key)
        own = [span for span in found.spans if span.lane == "orchestrator"] or found.spans
        begun, ended = min(s.start for s in own), max(s.end for s in own)
        episodes = sorted(
            (span for span in found.spans if span.kind == "play"), key=lambda s: s.start - s.end
        )
        kinds = {span.kind for span in found.spans}
        return self._page(
            "timeline", run=run, step=number, seconds=ended - begun, begun=begun, lanes=lanes(found.spans, begun, ended),
            kinds={kind: text for kind, text in KINDS.items() if kind in kinds}, longest=episodes[:_LONGEST],
        )  # fmt: skip


def lanes(spans: Sequence[Span], begun: float, ended: float) -> list[Lane]:
    """The lanes of a step from `begun` to `ended`, in the order in which they first appear."""
    names = dict.fromkeys(span.lane for span in spans)
    own = {name: [span for span in spans if span.lane == name] for name in names}
    return [
        Lane(name, _draw(name, part, begun, ended), len(part), idle(part, begun, ended))
        for name, part in own.items()
    ]


def idle(spans: Sequence[Span], begun: float, ended: float) -> float:
    """The share of the time in which none of the spans lies; to wait for others is to be idle."""
    busy, until = 0.0, begun
    for start, end in sorted((s.start, s.end) for s in spans if s.kind != "wait"):
        busy += max(0.0, min(end, ended) - max(start, until))
        until = max(until, min(end, ended))
    return 1.0 - busy / (ended - begun) if ended > begun else 0.0


def _draw(name: str, spans: Sequence[Span], begun: float, ended: float) -> Markup:
    """The spans; those that overlap lie in rows of their own."""
    free: list[float] = []  # when the last span of each row ends
    bars = []
    scale = _WIDTH / ((ended - begun) or 1.0)
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        row = next((n for n, end in enumerate(free) if end <= span.start), len(free))
        row = min(row, _ROWS - 1)
        free[row : row + 1] = [span.end]
        left, right = (
            (max(begun, min(ended, at)) - begun) * scale for at in (span.start, span.end)
        )
        bars.append(
            f'<rect class="{span.kind}" x="{left:.1f}" y="{row * _ROW}" width="{max(right - left, 0.8):.1f}" height="{_ROW - 1}">'
            f"<title>{escape(span.name)}: {span.end - span.start:.2f} s</title></rect>"
        )
    text = escape(f"{name}: {len(spans)} spans")
    return Markup(  # noqa: S704 - numbers and escaped text only
        f'<svg viewBox="0 0 {_WIDTH} {len(free) * _ROW}" role="img" aria-label="{text}">{"".join(bars)}</svg>'
    )
