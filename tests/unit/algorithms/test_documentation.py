"""docs/algorithms.md names every preset and every knob with its value in each preset."""

from dataclasses import fields
from pathlib import Path

from triforge.algorithms.presets import PRESETS, Preset

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def _shown(value):
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    return f"[{value[0]:g}, {value[1]:g}]" if isinstance(value, tuple) else f"{value}"


def test_every_knob_is_documented_with_its_value_in_every_preset():
    columns = [PRESETS[name].as_params() for name in ("rlanything_paper", "rlanything", "grpo")]
    assert "| knob | `rlanything_paper` | `rlanything` | `grpo` |" in PAGE
    for field in fields(Preset):
        if field.name != "name":
            values = [
                tuple(c[field.name]) if isinstance(c[field.name], list) else c[field.name]
                for c in columns
            ]
            row = f"| `{field.name}` | " + " | ".join(map(_shown, values)) + " |"
            assert row in PAGE, f"docs/algorithms.md lacks the row {row}"


def test_every_reason_a_sample_is_not_trained_on_is_documented():
    from triforge.algorithms import advantages, credit, filters

    reasons = [
        *(advantages.UNMEASURED, advantages.LONE, advantages.LONE_VOTE, advantages.ZERO_SPREAD),
        *(advantages.ZERO_ADVANTAGE, advantages.UNANIMOUS, advantages.UNREWARDED),
        *(credit.NO_OUTCOME, credit.NOT_JUDGED, credit.NOT_TRAINED),
        *(filters.NO_MEASUREMENT, filters.OUTSIDE_POLICY_BAND, filters.OUTSIDE_REWARD_BAND),
    ]
    assert [reason for reason in reasons if f"`{reason}`" not in PAGE] == []
