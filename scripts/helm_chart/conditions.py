"""From what holds in each variant to a condition over the chart's values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from scripts.helm_chart.source import Variant


@dataclass(frozen=True)
class _Rule:
    """An outcome for these overlays with at least these components."""

    overlays: frozenset[str]
    everywhere: bool  # whether these are all overlays that there are in question
    components: frozenset[str]
    outcome: str

    def holds(self, variant: Variant) -> bool:
        return variant[0] in self.overlays and self.components <= variant[1]

    def __str__(self) -> str:
        terms = [f'(has "{name}" .Values.components)' for name in sorted(self.components)]
        if not self.everywhere:
            names = " ".join(json.dumps(name) for name in sorted(self.overlays))
            terms.append(f"(eq .Values.overlay {names})")
        return joined("and", terms) if terms else "true"


def branches(outcomes: Mapping[Variant, str]) -> list[tuple[str, str]]:
    """Conditions with their outcomes, the first that holds decides; the last is the rest and has none."""
    rules = _rules(outcomes)
    groups = [(outcome, list(some)) for outcome, some in groupby(rules, lambda rule: rule.outcome)]
    conditions = [(joined("or", [str(rule) for rule in some]), outcome) for outcome, some in groups]
    return [*conditions[:-1], ("", conditions[-1][1])]


def condition(present: Mapping[Variant, bool]) -> str:
    """When it is present; empty when always."""
    chain = branches({variant: str(there) for variant, there in present.items()})
    text = chain[-1][1]
    for term, outcome in reversed(chain[:-1]):
        if outcome == "True":
            text = term if text == "False" else joined("or", [term, text])
        else:
            absent = f"(not {term})"
            text = absent if text == "True" else joined("and", [absent, text])
    return "" if text == "True" else text


def _rules(outcomes: Mapping[Variant, str]) -> list[_Rule]:
    """From the most special to the most general: one of components only where it is not what the general ones say."""
    rules: list[_Rule] = []
    for names in sorted({variant[1] for variant in outcomes}, key=lambda names: (len(names), sorted(names))):  # fmt: skip
        wanted = {variant[0]: outcome for variant, outcome in outcomes.items() if variant[1] == names}  # fmt: skip
        found_by = {overlay: next((rule.outcome for rule in rules if rule.holds((overlay, names))), None) for overlay in wanted}  # fmt: skip
        wrong = {outcome for overlay, outcome in wanted.items() if found_by[overlay] != outcome}
        usual = Counter(wanted.values()).most_common(1)[0][0]
        for outcome in sorted(wrong, key=lambda outcome: (outcome != usual, outcome)):
            where = frozenset(overlay for overlay in wanted if wanted[overlay] == outcome)
            rest = outcome == usual and not names
            rules.insert(0, _Rule(frozenset(wanted) if rest else where, rest or len(where) == len(wanted), names, outcome))  # fmt: skip
    return rules


def joined(word: str, terms: list[str]) -> str:
    """Terms under `and` or `or`."""
    return terms[0] if len(terms) == 1 else f"({word} {' '.join(terms)})"
