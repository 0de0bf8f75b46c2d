"""Sessions of random agents: what is packed is what was served, every sampled token once and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from triforge.rollout.lineages import Forest, digests, pack
from triforge.types import GenerateOutput, Turn, VersionSpan

Message = dict[str, Any]


class Server:
    """A model API whose tokenizer splits text otherwise when it sees it again: what was sampled must not be."""

    def __init__(self) -> None:
        self.forest, self.turns = Forest(), list[Turn]()
        self.served: dict[str, list[int]] = {}  # prompts, by turn
        self.fresh = 1000  # every sampled token is another one

    def ask(self, messages: list[Message], samples: list[str], version: int = 0) -> list[Message]:
        chain = digests("", messages)
        parent, held = self.forest.continued(chain, [m["role"] for m in messages])
        new = [1 + ord(c) for m in messages[held:] for c in f"{m['role']}:{m['content']};"]
        prompt = self.forest.ids(parent) + new
        number, answers = len({t.answer for t in self.turns}) + 1, []
        for choice, text in enumerate(samples):
            answers.append({"role": "assistant", "content": text})
            ids = tuple(range(self.fresh, self.fresh + len(text) + 1))
            self.fresh += len(ids)
            span = VersionSpan(version=version, start=0, end=len(ids))
            logprobs = tuple(-float(token) for token in ids)
            turn = Turn(
                answer=number, choice=choice, parent=parent, new_ids=tuple(new), at=0.0,
                output=GenerateOutput(text=text, ids=ids, logprobs=logprobs, versions=(span,), finish="stop"),
                conversation=digests("", [*messages, answers[-1]])[-1],
            )  # fmt: skip
            self.served[turn.id] = prompt
            self.turns.append(turn)
        for turn in self.turns[-len(samples) :]:
            self.forest.add(turn)
        return answers


def play(draw: Any) -> Server:
    """An agent that goes on, forks, retries, compacts, edits its history and asks in parallel, as it likes."""
    server, known = Server(), [[{"role": "user", "content": "go"}]]
    texts = st.text("ab ", max_size=2)
    for _ in range(draw(st.integers(1, 12))):
        history = list(draw(st.sampled_from(known)))
        match draw(st.sampled_from(["go on", "edit", "compact", "side"])):
            case "edit":
                at = draw(st.integers(0, len(history) - 1))
                history[at] = {**history[at], "content": draw(texts)}
            case "compact":
                history = [{"role": "user", "content": draw(texts)}, *history[-1:]]
            case "side":
                history = [{"role": "system", "content": "title"}, {"role": "user", "content": "?"}]
        samples = draw(st.lists(texts, min_size=1, max_size=3))
        for answer in server.ask(history, samples, version=draw(st.integers(0, 3))):
            role = draw(st.sampled_from(["user", "tool"]))
            known.append([*history, answer, {"role": role, "content": draw(texts)}])
    return server


@settings(max_examples=60)
@given(st.data())
def test_every_sampled_token_is_trained_once_and_nothing_else(data: st.DataObject) -> None:
    server = play(data.draw)
    segments, places = pack(server.turns)
    trained: Counter[int] = Counter()
    for turn in server.turns:
        number, start, end = places[turn.id]
        segment = segments[number]
        assert segment.ids[start:end] == turn.output.ids
        assert segment.logprobs[start:end] == turn.output.logprobs
        assert list(segment.ids[:start]) == server.served[turn.id]  # the prompt as it was served
        trained.update(segment.ids[start:end])
    assert set(trained.values()) <= {1}
    assert sum(trained.values()) == sum(len(t.output.ids) for t in server.turns)
    for number, segment in enumerate(segments):
        mine = [place for place in places.values() if place[0] == number]
        inside = {token for _, start, end in mine for token in range(start, end)}
        assert all(
            segment.logprobs[at] == 0.0 for at in range(len(segment.ids)) if at not in inside
        )
        assert {at for span in segment.versions for at in range(span.start, span.end)} == inside


@settings(max_examples=20)
@given(st.data())
def test_each_branch_is_packed_once(data: st.DataObject) -> None:
    server = play(data.draw)
    segments, _ = pack(server.turns)
    parents = {turn.parent for turn in server.turns}
    assert len(segments) == sum(turn.id not in parents for turn in server.turns)
    assert pack(list(reversed(server.turns))) == pack(server.turns)


def test_a_forest_that_was_read_again_serves_the_same_prompts() -> None:
    server = Server()
    history: list[Message] = [{"role": "user", "content": "go"}]
    (answer,) = server.ask(history, ["left"])
    again = Forest()
    for turn in server.turns:
        again.add(Turn.model_validate_json(turn.model_dump_json()))
        size = again.size
        again.add(turn)
        assert again.size == size
    history += [answer, {"role": "tool", "content": "wall"}]
    found = again.continued(digests("", history), [m["role"] for m in history])
    assert found == ("1.0", 2)
    assert again.ids("1.0") == [*server.served["1.0"], *server.turns[0].output.ids]


def test_what_continues_a_turn_and_what_does_not() -> None:
    server = Server()
    start: list[Message] = [{"role": "user", "content": "go"}]
    (answer,) = server.ask(start, ["left "])
    trimmed = {"role": "assistant", "content": "left"}
    more: Message = {"role": "user", "content": "on"}

    def parent(*messages: Message, head: str = "") -> str | None:
        return server.forest.continued(digests(head, messages), [m["role"] for m in messages])[0]

    assert parent(*start, answer, more) == "1.0"
    assert parent(*start, trimmed, more, more) == "1.0"
    assert parent(*start) is None  # a retry is a root of its own
    assert parent(*start, answer) is None  # the model is to go on with its own text
    assert parent(*start, {"role": "assistant", "content": "right"}, more) is None
    assert parent({"role": "user", "content": "gone"}, answer, more) is None
    assert parent(*start, answer, more, {"role": "assistant", "content": "put there"}, more) is None
    assert parent(*start, answer, more, head="other tools") is None


def test_a_turn_whose_parent_is_lost_is_left_out() -> None:
    server = Server()
    start: list[Message] = [{"role": "user", "content": "go"}]
    (answer,) = server.ask(start, ["a"])
    server.ask([*start, answer, *start], ["b"])
    server.ask(start, ["c"])
    segments, places = pack(server.turns[1:])
    assert set(places) == {"3.0"}
    assert len(segments) == 1
