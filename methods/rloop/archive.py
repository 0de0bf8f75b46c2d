"""The archive of a loop: which solutions are imitated, and measures of diversity and forgetting.

Sources: RLoop (arXiv 2511.04285) keeps the solutions of intermediate steps of RL and imitates them, hard tasks first; the rule of
hardness, the number of solutions and the order of steps are ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from triforge.algorithms.paired import pass_at

_GRAM = 4  # words
_COMPARED = 8  # rollouts of a task, all pairs of them


@dataclass(frozen=True, slots=True)
class Rollout:
    """A measured rollout: its task, the training step that played it, its success and its actions as one text."""

    id: str
    task: Hashable
    step: int
    success: bool
    actions: str


def solutions(archive: Sequence[Rollout], *, hardest: float, distinct: int) -> list[Rollout]:
    """Return the successes to imitate: at most `distinct` of each task whose pass rate over the archive is in (0, hardest].

    Of solutions with the same words only the earliest counts. Those of different steps come first, spread over the steps.
    """
    by_task: dict[Hashable, list[Rollout]] = defaultdict(list)
    for rollout in archive:
        by_task[rollout.task].append(rollout)
    chosen = []
    for played in by_task.values():
        solved = [rollout for rollout in played if rollout.success]
        if solved and len(solved) <= hardest * len(played):
            chosen += _spread(solved, distinct)
    return chosen


def _spread(solved: Sequence[Rollout], count: int) -> list[Rollout]:
    different: dict[str, Rollout] = {}
    for rollout in sorted(solved, key=lambda r: r.step):
        different.setdefault(" ".join(rollout.actions.lower().split()), rollout)
    turns: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in different.values():
        turns[rollout.step].append(rollout)
    rounds = [[own[n] for own in turns.values() if n < len(own)] for n in range(len(different))]
    found: list[Rollout] = []
    for part in rounds:
        free = count - len(found)
        places = [n * (len(part) - 1) // max(1, free - 1) for n in range(free)]
        found += part if len(part) <= free else [part[place] for place in places]
    return found


def archive_measures(archive: Sequence[Rollout], *, k: int) -> dict[str, float]:
    """Return `avg` (success), `pass` (@k, over tasks with k tries at least), `forgotten` and `similarity`, each a mean over tasks.

    A task is forgotten if it was solved in an earlier step and in none of the rollouts of the last step that played it; only
    tasks that several steps played count. Similarity: `self_similarity`.
    """
    by_task: dict[Hashable, list[Rollout]] = defaultdict(list)
    for rollout in archive:
        by_task[rollout.task].append(rollout)
    rows = list(by_task.values())
    measures = {"avg": [fmean(r.success for r in row) for row in rows]}
    enough = [row for row in rows if len(row) >= k]
    measures["pass"] = [pass_at(k, len(row), sum(r.success for r in row)) for row in enough]
    measures["forgotten"] = [found for row in rows if (found := _forgotten(row)) is not None]
    measures["similarity"] = [
        self_similarity(r.actions for r in row[:_COMPARED]) for row in rows if len(row) > 1
    ]
    return {name: fmean(values) for name, values in measures.items() if values}


def _forgotten(row: Sequence[Rollout]) -> bool | None:
    last = max(r.step for r in row)
    before = [r.success for r in row if r.step < last]
    return any(before) and not any(r.success for r in row if r.step == last) if before else None


def self_similarity(texts: Iterable[str], gram: int = _GRAM) -> float:
    """Return the mean Jaccard similarity of all pairs of texts, as sets of sequences of `gram` words.

    A shorter text is one sequence.
    """
    sets = []
    for text in texts:
        words = text.lower().split()
        sets.append({tuple(words[n : n + gram]) for n in range(max(1, len(words) - gram + 1))})
    pairs = [len(a & b) / len(a | b) for a, b in combinations(sets, 2)]
    return fmean(pairs) if pairs else 0.0
