"""docs/algorithms.md names every preset and every option with its value in each preset."""

from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from triforge.algorithms.named import NAMED
from triforge.algorithms.presets import PRESETS, Preset

OPTIONS = [field.name for field in fields(Preset) if field.name != "name"]
PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def _shown(value):
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    return f"[{value[0]:g}, {value[1]:g}]" if isinstance(value, tuple) else f"{value}"


def test_every_option_is_documented_with_its_published_and_its_default_value():
    assert "| option | `rlanything_paper` | `rlanything` |" in PAGE
    for name in OPTIONS:
        values = [getattr(PRESETS[preset], name) for preset in ("rlanything_paper", "rlanything")]
        row = f"| `{name}` | " + " | ".join(map(_shown, values)) + " |"
        assert row in PAGE, f"docs/algorithms.md lacks the row {row}"


@pytest.mark.parametrize("preset", sorted(set(NAMED) - {"rlanything_paper", "rlanything"}))
def test_every_other_preset_is_documented_by_what_it_sets(preset):
    options = [
        f"`{k}` {_shown(getattr(PRESETS[preset], k))}" for k in OPTIONS if k in NAMED[preset]
    ]
    row = f"| `{preset}` | {', '.join(options)} |"
    assert row in PAGE, f"docs/algorithms.md lacks the row {row}"


def test_every_choice_of_an_axis_is_explained():
    for name, hint in get_type_hints(Preset).items():
        for choice in get_args(hint) if get_origin(hint) is Literal else ():
            assert f"`{choice}`" in PAGE or f'"{choice}"' in PAGE, f"{name} = {choice!r}"


def test_every_reason_a_sample_is_not_trained_on_is_documented():
    from triforge.algorithms import advantages, credit, filters, imitation, unit_tests

    reasons = [
        *(advantages.UNMEASURED, advantages.LONE, advantages.LONE_VOTE, advantages.ZERO_SPREAD),
        *(advantages.ZERO_ADVANTAGE, advantages.UNANIMOUS, advantages.UNREWARDED),
        *(credit.NO_OUTCOME, credit.NOT_JUDGED, credit.NOT_TRAINED),
        *(filters.NO_MEASUREMENT, filters.OUTSIDE_POLICY_BAND, filters.OUTSIDE_REWARD_BAND),
        *(filters.ONE_SIDED, filters.LOW_SPREAD, imitation.NOT_A_SUCCESS, imitation.NO_PAIR),
        unit_tests.NO_GOOD_PROGRAM,
    ]
    assert [reason for reason in reasons if f"`{reason}`" not in PAGE] == []
