"""The prompts of diagnosis and rewriter, and their allowed answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.env_adapter.adaptation.controllers import wanted_direction
from services.env_adapter.adaptation.diagnosis import (
    Diagnosis,
    build_prompt,
    choose,
    condemned,
)
from services.env_adapter.adaptation.rewriter import (
    MAX_CHOICES,
    Choices,
    Rewriter,
    choices,
)
from services.env_adapter.adaptation.rewriter import build_prompt as rewriter_prompt
from services.env_adapter.adaptation.settings import RunOutcome
from tests.sections import adapt_settings
from triforge.prompt_escaping import one_line, quote
from triforge.rollout.protocols import RewriteMenu
from triforge.testing.fakes import FakeGenerate
from triforge.types import DiagnosisNote, Sampling


def note(
    name: str, *steps: tuple[str, str, tuple[int, ...]], success: bool = False, **more: Any
) -> DiagnosisNote:
    return DiagnosisNote(trajectory_id=name, success=success, steps=steps, **more)


def outcome(successes: int, measured: int, rollouts: int = 8, **more: Any) -> RunOutcome:
    fields: dict[str, Any] = {"purpose": "train", **more}
    return RunOutcome(
        group_id="g",
        run_id="r",
        step=0,
        pool_id="p",
        task_id="t",
        successes=successes,
        measured=measured,
        rollouts=rollouts,
        policy_version=0,
        **fields,
    )


# ---- when a task should change ----


@pytest.mark.parametrize(
    ("successes", "measured", "wanted"),
    [
        (8, 8, "harder"),
        (7, 8, "harder"),  # 0.875 is above 0.8
        (6, 8, None),
        (2, 8, None),
        (1, 8, "easier"),
        (0, 8, "easier"),
        (4, 5, None),  # exactly alpha_high is inside the band
        (1, 5, None),  # exactly alpha_low, too
        (0, 4, "easier"),  # half of the group is enough
        (0, 3, None),  # less is no sign of difficulty
        (0, 0, None),
    ],
)
def test_a_task_leaves_the_band_by_what_was_measured(
    successes: int, measured: int, wanted: str | None
) -> None:
    assert wanted_direction(outcome(successes, measured)) == wanted


def test_only_training_groups_that_may_adapt_ask_for_a_rewrite() -> None:
    assert wanted_direction(outcome(8, 8, purpose="measure_parent")) is None
    for purpose in ("measure_parent", "measure_candidate", "evaluate"):
        assert wanted_direction(outcome(8, 8, purpose=purpose)) is None
    wide = adapt_settings(alpha_high=1.0)
    assert wanted_direction(outcome(8, 8, settings=wide)) is None


# ---- quoted text ----


@given(st.text(max_size=300))
def test_any_text_stays_inside_its_quotation_marks(text: str) -> None:
    quoted = quote(text, limit=100)
    assert len(quoted) <= 102
    assert re.fullmatch(r"«[^«»<>\n\r`]*»", quoted)


def test_plain_text_stays_as_it_is() -> None:
    plain = "Put 2 clean mugs (blue) in/on shelf 1; it isn't [open]."
    assert one_line(plain, limit=100) == plain


# ---- the diagnosis ----


def test_a_step_is_condemned_when_every_vote_is_negative() -> None:
    steps = [("a", "o", (-1, -1)), ("b", "o", (-1, 1)), ("c", "o", (0, -1)), ("d", "o", ())]
    assert condemned(note("t", *steps)) == (0,)


def test_easier_reads_the_most_condemned_failures_harder_the_shortest_successes() -> None:
    step = ("a", "o", (1, 1))
    bad = ("a", "o", (-1, -1))
    notes = [
        note("a", step, step),
        note("b", bad, step),
        note("c", bad, bad),
        note("d", step, step, step, success=True),
        note("e", step, success=True),
    ]
    assert [n.trajectory_id for n in choose(notes, "easier", count=2)] == ["c", "b"]
    assert [n.trajectory_id for n in choose(notes, "harder", count=1)] == ["e"]
    assert choose(notes[:3], "harder", count=2) == ()


def test_a_long_trajectory_is_shown_by_its_beginning_and_its_end() -> None:
    steps = [(f"act{i}", "seen", (-1 if i == 1 else 1,)) for i in range(200)]
    content = build_prompt(note("t", *steps), "Do it.", "harder")[0].text
    assert "«act0»" in content
    marked = [line for line in content.splitlines() if line.endswith("[all judges: bad]")]
    assert marked == ["2. «act1» -> «seen» [all judges: bad]"]
    assert "«act199»" in content
    assert "«act100»" not in content
    assert len(content) < 6000


async def test_the_diagnosis_summarises_each_note_within_its_token_budget() -> None:
    model = FakeGenerate(["It dropped the mug. Twice. Thrice.", ""])
    texts = await Diagnosis(model).summarise(
        [note("a"), note("b")], "Put it down.", "easier", tokens=17, budget=40, seed=1
    )
    assert texts == ("It dropped the mug. Twice.",)
    assert [request.sampling.max_new_tokens for request in model.requests] == [17, 17]
    assert all(request.sampling.temperature == 0.0 for request in model.requests)


# ---- the rewriter ----


def menu_of(**fields: tuple[str, ...]) -> RewriteMenu:
    return RewriteMenu(description="", fields=fields)


@given(
    st.dictionaries(
        st.sampled_from(["goal", "object", "odd.field"]),
        st.lists(
            st.text("ab.*+?()[]{}|^$\\ -", min_size=1, max_size=6),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        min_size=1,
    ),
    st.integers(0, 5),
)
def test_every_offered_line_matches_the_expression_and_reads_back(
    fields: dict[str, list[str]], seed: int
) -> None:
    offered = choices(
        menu_of(**{k: tuple(v) for k, v in fields.items()}), lambda _: True, seed=seed
    )
    assert offered.regex is not None
    for line, answer in offered.lines.items():
        assert re.fullmatch(offered.regex, line)
        assert Choices({line: answer}).parse(line) == (answer, "")
    assert not re.fullmatch(offered.regex, "something else")


def test_a_huge_menu_is_sampled_by_its_seed_in_the_menus_order() -> None:
    digits = tuple("0123456789")
    menu = menu_of(a=digits, b=digits, c=digits, d=digits, e=digits, f=digits, g=digits)
    first, again = (choices(menu, lambda _: True, seed=3) for _ in range(2))
    other = choices(menu, lambda _: True, seed=4)
    assert list(first.lines) == list(again.lines) == sorted(first.lines)
    assert len(first.lines) == MAX_CHOICES
    assert first.lines != other.lines
    assert first.regex is not None
    assert len(first.regex) < 10_000


def test_joint_choices_are_offered_instead_of_the_product() -> None:
    pairs = ({"a": "1", "b": "x"}, {"a": "2", "b": "y"})
    menu = RewriteMenu(
        description="", fields={"a": ("1", "2"), "b": ("x", "y")}, combinations=pairs
    )
    offered = choices(menu, lambda _: True, seed=0)
    assert list(offered.lines) == ["a: 1, b: x", "a: 2, b: y"]
    assert offered.parse("a: 1, b: y")[0] is None


def test_what_the_slot_has_had_before_is_not_offered() -> None:
    offered = choices(menu_of(a=("1", "2")), lambda answer: answer["a"] != "1", seed=0)
    assert list(offered.lines) == ["a: 2"]
    assert not choices(menu_of(), lambda _: True, seed=0)
    assert not choices(menu_of(a=("1",)), lambda _: False, seed=0)


def test_a_familys_json_schema_is_passed_on_and_read() -> None:
    menu = RewriteMenu(description="", json_schema='{"type": "object"}')
    offered = choices(menu, lambda _: True, seed=0)
    assert offered
    assert offered.regex is None
    assert offered.parse('{"a": "b", "n": 3}')[0] == {"a": "b", "n": "3"}
    for nonsense in ("[1]", "x", "[" * 100_000):
        assert offered.parse(nonsense)[0] is None
    assert "JSON object" in rewriter_prompt(
        menu, offered, direction="harder", accuracy=1.0, notes=(), root=""
    )


async def test_the_rewriter_is_held_to_the_choices() -> None:
    model = FakeGenerate(["a: 1"])
    offered = choices(menu_of(a=("1", "2.5")), lambda _: True, seed=0)
    answers = await Rewriter(model).ask(
        "prompt", offered, sampling=Sampling(max_new_tokens=9), candidates=3, seed=7
    )
    assert answers == ("a: 1",) * 3
    (request,) = model.requests
    assert request.n == 3
    assert request.sampling.regex == r"a: 1|a: 2\.5"
    assert (request.sampling.seed, request.sampling.max_new_tokens) == (7, 9)
