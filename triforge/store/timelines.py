"""The spans in which each process worked on a step, stored with the step's record."""

from __future__ import annotations

from triforge.errors import NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.types import Timeline


def _name(run_id: str, step: int) -> str:
    return f"runs/{run_id}/timelines/{step:05d}.json"


def write_timeline(store: ArtifactStore, timeline: Timeline) -> None:
    """Write the spans of a step."""
    store.write(_name(timeline.run_id, timeline.step), timeline.model_dump_json().encode())


def read_timeline(store: ArtifactStore, run_id: str, step: int) -> Timeline:
    """Return the spans of a step; NotFoundError if none are stored."""
    try:
        return Timeline.model_validate_json(store.read(_name(run_id, step)))
    except NotFoundError:
        raise NotFoundError(
            f"step: given {step}, expected a finished training step of run {run_id}; steps of an older triforge have no times"
        ) from None
