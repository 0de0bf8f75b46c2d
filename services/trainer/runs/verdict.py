"""The verdict on a run in a sentence, its alarms, and what to try next; of the steps that are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from triforge.algorithms.alarms import alarms
from triforge.algorithms.verdict import HELD_OUT, Change, Word, change_of
from triforge.types import ENDED, RunState, RunStep, Verdict

_FEW_GROUPS: Final = 0.2  # of a step, whose rewards differ
_SMALLER: Final = 5.0  # times, of a learning rate that moved the policy too far
_HARD: Final = 0.5  # success below which tasks are too hard, not too easy
_CEILING: Final = 0.95  # success above which there is little left to learn
_MOST_TASKS: Final = 5000  # to ask for
_UNMEASURED: Final = (
    "the judge is not measured: no labels of its steps, from the environment or, with methods.audit, from people (page `labels` of the "
    "run, POST /v1/runs/{run}/labels)"
)


def verdict_of(run: RunState, steps: Sequence[RunStep]) -> Verdict | None:
    """Return the verdict on a run, given its milestones (`RunStore.milestones`); None before a step, and of an evaluation alone."""
    if not (steps and run.steps):
        return None
    first, last = steps[0], steps[-1]
    changes = ((change_of(step.metrics), step) for step in reversed(steps))
    change, at = next((found for found in changes if found[0]), (None, last))
    raised = alarms(last.metrics)
    raised.pop("H", None)  # is the verdict
    word, text = _sentence(run, change, first, at)
    advice, options = "", tuple[str, ...]()
    if any(last.versions.get(role) != v for role, v in first.versions.items() if role != "reward"):
        measures = {**(at.metrics if at else {}), **last.metrics}
        advice, options = _next(run, measures, change, ran_off="K" in raised)
    elif change:
        text += "; no update was made"
    unmeasured = (_UNMEASURED,) if last.metrics.get("judge/unmeasured") else ()
    warnings = (*raised.values(), *unmeasured)
    return Verdict(word=word, text=text, warnings=warnings, advice=advice, options=options)


def _sentence(
    run: RunState, change: Change | None, first: RunStep, at: RunStep
) -> tuple[Word, str]:
    if change is None:
        ended = "held-out tasks were not played before and after training"
        goes_on = "the next evaluation compares held-out tasks with step 0"
        if run.by_trainer:
            return "not measured", "not measured: the policy is evaluated by its own trainer"
        return "not measured", f"not measured: {ended if run.status in ENDED else goes_on}"
    before, after = (step.metrics[change.measure] for step in (first, at))
    kind = "success" if change.measure == HELD_OUT[0] else "score"
    return change.word, (
        f"{change.word}: held-out {kind} {before:.3f} -> {after:.3f} at step {at.step}: {change.shown}; {change.pairs} sampled "
        "episodes before and after"
    )


def _next(
    run: RunState, measures: Mapping[str, float], change: Change | None, *, ran_off: bool
) -> tuple[str, tuple[str, ...]]:
    """Return what to change, and the options of it."""
    word = change.word if change else ""
    if word == "worse" or (word != "better" and ran_off):
        return "smaller steps", _set(run, "trainer.policy.learning_rate", 1 / _SMALLER)
    if change is None:
        return (
            "held-out tasks in the pool (`heldout`), run.eval_every and run.eval_tasks above 0",
            (),
        )
    if measures.get(HELD_OUT[0], 0.0) >= _CEILING:
        return "harder tasks (`generate`): nearly every held-out one succeeds", ()
    taught = measures.get("groups/effective", 1.0)
    if taught < _FEW_GROUPS:
        kind = "easier" if measures.get("success", 0.0) < _HARD else "harder"
        why = f"only {taught:.0%} of the groups of the last step had rewards that differ"
        advice = f"{kind} tasks, or more attempts at each: {why}"
        return advice, _set(run, "env_adapter.rollouts", 2)
    more = (f"--steps {run.steps * 2}",)
    tasks = change.pairs_to_tell
    whole = change.pairs >= run.config["run"]["eval_tasks"]  # else the pool has no more of them
    if word == "better" or not (tasks and tasks <= _MOST_TASKS and whole):
        return "more steps", more
    advice = f"more steps; about {tasks} held-out tasks would tell this difference"
    return advice, (*more, f"--heldout {tasks}")


def _set(run: RunState, option: str, times: float) -> tuple[str, ...]:
    """Return the option of the command line that multiplies a number of the run's config."""
    value: Any = run.config
    for name in option.split("."):
        value = value.get(name, {})
    return (f"--set {option}={value * times:.6g}",) if value else ()
