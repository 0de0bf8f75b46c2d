"""Was every group accounted for, nothing trained twice, no version mixed? By the invariants that chaos holds runs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from chaos.evidence import evidence_of
from chaos.invariants import ALWAYS, dropped, payloads, shape


def judge(facts: Mapping[str, Any], *, quiet_since: float = 0.0) -> dict[str, list[str]]:
    """Return what is wrong, by check; an empty list where nothing is.

    Args:
        quiet_since: when the last fault was over and what it hit had started again, in seconds since 1970.
    """
    runs = [evidence_of(run) for run in facts["runs"]]
    checks = {
        f"{name}: {_first_sentence(check.__doc__)}": [
            f"run {run.run['id']}: {wrong}" for run in runs for wrong in check(run)
        ]
        for name, check in ALWAYS.items()
    }
    left = [f"{facts['jobs']} jobs"] if facts["jobs"] else []
    return checks | {
        "emptied: No job waits in any queue.": left,
        "returned: What was delivered and not acknowledged was taken before the last death, and its work is done.": [
            f"{one['queue']} {one['job']}: {one['state']}, taken {one['at'] - quiet_since:+.1f} s from the last start"
            for one in facts["unacknowledged"]
            if one["at"] > quiet_since or one["state"] in ("open", "held", "put off")
        ],
    }


def totals(facts: Mapping[str, Any]) -> dict[str, int]:
    """How much there was, what was not trained on, by reason, and what waits in the broker for its time to run out."""
    counted: Counter[str] = Counter()
    for run in facts["runs"]:
        found = evidence_of(run)
        counted["runs"] += 1
        counted.update({name: int(count) for name, count in shape(found).items()})
        counted.update({f"not trained on: {why}": count for why, count in dropped(found).items()})
        counted["payloads left to expire"] += len(payloads(found))
    for one in facts["unacknowledged"]:
        counted[f"not acknowledged: {one['queue']}, {one['state']}"] += 1
    return dict(counted)


def _first_sentence(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
