"""The memory of the process with ALFWorld's engine is bounded, and each caller gets a copy."""

from __future__ import annotations

from environments.alfworld.worker import copied


def test_only_the_texts_that_were_asked_for_last_are_remembered() -> None:
    parsed: list[str] = []

    def parse(text: str, **options: object) -> list[str]:
        parsed.append(text)
        return [text, *sorted(options)]

    once = copied(parse, 2)
    for text in ("a", "b", "a", "c", "a", "b"):
        assert once(text) == [text]
    assert parsed == ["a", "b", "c", "b"]  # b was the oldest when c came
    assert once("b", simplify=True) == ["b", "simplify"]
    once("b", simplify=True).append("filled in")
    assert once("b", simplify=True) == ["b", "simplify"]
