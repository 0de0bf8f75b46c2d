"""Recordings: what counts as the same shape, and what is settled before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.real_sglang.exchanges import Exchange, Folders
from scripts.real_sglang.recordings import alike, read, settled, write

FOLDERS = Folders(start=Path("/tmp/a"), other=Path("/tmp/b"), missing=Path("/tmp/c"))


def exchange(reply: Any, **fields: Any) -> Exchange:
    return Exchange(
        name="one", method="POST", path="/generate", request={"model_path": "/tmp/b"}, status=200, reply=reply, **fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "recorded"),
    [
        ({"a": 1}, {"a": 2.5}),
        ({"a": [1, 2]}, {"a": [3]}),
        ([{"a": 1}, {"b": ""}], [{"b": "x"}, {"a": 0}]),
        ({"cached_tokens_details": None}, {"cached_tokens_details": {"device": 1}}),
        ({"checksums": {"x": "1"}}, {"checksums": {"y": "2", "z": "3"}}),
    ],
)
def test_replies_of_one_shape_are_alike(found: Any, recorded: Any) -> None:
    assert alike(found, recorded)


@pytest.mark.parametrize(
    ("found", "recorded"),
    [
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": 1, "b": 1}, {"a": 1}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {"a": 1}),
        ({"a": [1]}, {"a": [[1]]}),
        ({"a": [1, "x"]}, {"a": [1]}),
        ({"checksums": {"x": 1}}, {"checksums": {"y": "2"}}),
    ],
)
def test_another_name_type_or_nesting_is_not_alike(found: Any, recorded: Any) -> None:
    assert not alike(found, recorded)


def test_what_differs_from_one_recording_to_the_next_is_settled() -> None:
    meta = {"id": "0123456789abcdef" * 2, "e2e_latency": 3.2, "logprob": -0.123456789}
    reply = {"meta_info": meta, "row": list(range(50)), "model_path": "/tmp/a"}
    found = settled(exchange(reply), FOLDERS)
    assert found.request == {"model_path": "/models/policy/v000001"}
    assert found.reply == {
        "meta_info": {"id": "0" * 32, "e2e_latency": 0.5, "logprob": -0.1235},
        "row": [0, 1, 2, 3],
        "model_path": "/models/policy/v000000",
    }


def test_a_stream_keeps_the_events_that_look_new_and_the_last(tmp_path: Path) -> None:
    events = [{"n": 1}, {"n": 2}, {"n": None}, {"n": 3}]
    write([exchange(events, stream=True)], tmp_path, engine="x", folders=FOLDERS)
    (found,) = read(tmp_path).values()
    assert found.reply == [{"n": 1}, {"n": None}, {"n": 3}]
    assert found.stream
