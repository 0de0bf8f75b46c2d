"""Invariants of every run under faults. Each check returns what is wrong as sentences; none if it holds.

They hold for runs that play one round a step (`run.staleness_bound = 0`), which is what chaos submits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

from chaos.evidence import Evidence, Row

_DAY_S = 24 * 3600
_WEEK_S = 7 * _DAY_S
_PAYLOADS = ("tf:group:", "tf:trajectory:", "tf:votes:")
_AUDITED = "audit/rows"  # the rows that the method audit trains the judge on, in the place of those of votes
Check = Callable[[Evidence], list[str]]


def finished(found: Evidence) -> list[str]:
    """Check that the run is finished at its last step, and that each step is there once."""
    run, last = found.run, int(found.run["config"]["run"]["steps"])
    wrong = []
    if run["status"] != "finished":
        wrong.append(f"the run is {run['status']}: {run['reason']}")
    numbers = [step["step"] for step in found.steps]
    if numbers != list(range(last + 1)):
        wrong.append(f"steps on record: {numbers}, expected 0 to {last}")
    if run["step"] != (numbers[-1] if numbers else -1):
        wrong.append(f"the run stands at step {run['step']}, its last record is {numbers[-1:]}")
    return wrong


def accounted(found: Evidence) -> list[str]:
    """Every planned group is in the record of its step: all rollouts, or counted as failures without a step. No failure is counted besides."""
    wrong = []
    played: dict[str, set[str]] = defaultdict(set)
    unmeasured: dict[int, set[str]] = defaultdict(set)
    for row in found.records:
        played[row["group_id"]].add(row["trajectory_id"])
        if row["outcome"] is None:
            unmeasured[row["file_step"]].add(row["trajectory_id"])
    rollouts = int(found.run["config"]["env_adapter"]["rollouts"])
    plans = {plan["step"]: plan["groups"] for plan in found.plans}
    planned: set[str] = set()
    for step in found.steps:
        if step["step"] == 0:
            continue
        names = group_ids(found.run["id"], step["step"], len(plans.get(step["step"], [])))
        planned |= set(names)
        lacking = sum(rollouts - len(played[name]) for name in names)
        failures = int(step["metrics"].get("infrastructure_failures", 0))
        without = len(unmeasured[step["step"]])
        if not names or lacking < 0 or lacking + without != failures:
            wrong.append(
                f"step {step['step']}: of {len(names)} groups {lacking} rollouts are in no record and {without} have no outcome, "
                f"counted are {failures} failures"
            )
    strangers = set(played) - planned
    return wrong + [f"in the record and in no plan: {name}" for name in sorted(strangers)]


def kept(found: Evidence) -> list[str]:
    """Every submitted task is in the pool, one version of it active; each rewrite of it has a proposal that says its state."""
    versions: dict[str, list[Row]] = defaultdict(list)
    places: dict[str, set[int]] = defaultdict(set)
    for task in found.tasks:
        versions[task["slot"]].append(task)
        places[task["split"]].add(task["position"])
    wrong = [
        f"places of the {split} tasks: {sorted(there)}, expected 0 to {max(there)}"
        for split, there in places.items()
        if there != set(range(max(there) + 1))
    ]
    proposed = Counter(row["slot"] for row in found.proposals)
    for slot, rows in versions.items():
        active = sum(row["standing"] == "active" for row in rows)
        if active != 1:
            wrong.append(f"{slot} has {active} active versions")
        if len(rows) - 1 > proposed[slot]:
            wrong.append(
                f"{slot} was rewritten {len(rows) - 1} times by {proposed[slot]} proposals"
            )
    return wrong if versions else ["the pool has no tasks"]


def alike(found: Evidence) -> list[str]:
    """Check as in an undisturbed run: each step plans its groups and moves each trained model by one version."""
    asked = int(found.run["config"]["run"]["groups_per_step"])
    with_pairs = not found.run["config"]["adaptation"]["pairs_on_top"]
    planned = {
        plan["step"]: sum(with_pairs or not group.get("proposal_id") for group in plan["groups"])
        for plan in found.plans
    }
    wrong = []
    for before, step in pairwise(found.steps):
        number = step["step"]
        if planned.get(number) != asked:
            wrong.append(
                f"step {number}: {planned.get(number)} groups were planned, asked were {asked}"
            )
        mine = [row for row in found.records if row["file_step"] == number]
        votes = [vote for row in mine for vote in row["votes"]]
        for column, rows in (("policy_version", mine), ("reward_version", votes)):
            trained = any(row["reason"] == "" for row in rows)
            if column == "reward_version" and _AUDITED in step["metrics"]:
                trained = bool(step["metrics"][_AUDITED])
            if step[column] - before[column] != int(trained):
                wrong.append(
                    f"step {number}: {column} went from {before[column]} to {step[column]}, "
                    f"and {'something' if trained else 'nothing'} was trained on"
                )
    return wrong


def once(found: Evidence) -> list[str]:
    """No step of a rollout is in the record twice, none has more votes than were asked for, and a group is in the record of one step only."""
    votes = int(found.run["config"]["reward"]["votes"])
    rows = Counter((row["trajectory_id"], row["step_index"]) for row in found.records)
    places: dict[str, set[int]] = defaultdict(set)
    for row in found.records:
        places[row["group_id"]].add(row["file_step"])
    wrong = [f"{key} is {count} times in the record" for key, count in rows.items() if count > 1]
    wrong += [
        f"{row['trajectory_id']}, step {row['step_index']}: {len(row['votes'])} votes, asked for were {votes}"
        for row in found.records
        if len(row["votes"]) > votes
    ]
    return wrong + [
        f"{group} is in the records of the steps {sorted(steps)}"
        for group, steps in places.items()
        if len(steps) > 1
    ]


def learnt(found: Evidence) -> list[str]:
    """Each version is of the step that took it, and its checkpoint counts the updates of all batches up to it, each batch once."""
    wrong = []
    for role, side in (("policy", "policy"), ("reward", "reward")):
        config = found.run["config"]
        updates, due = 0, {}
        for before, step in pairwise(found.steps):
            section = config["trainer"][side]
            per_step = section["updates_per_step"]
            if side == "reward" and _AUDITED in step["metrics"]:
                per_step = config["methods"]["audit"]["updates"]
            rows = int(step["metrics"].get(f"rows/{side}", 0))
            updates += section["epochs"] * min(per_step, rows)
            if step[f"{side}_version"] > before[f"{side}_version"]:
                due[step[f"{side}_version"]] = (step["step"], updates)
        wrong += [
            f"{role} {f.version}: trained in step {f.step} and {f.updates} updates, on record are step {due[f.version][0]} "
            f"and {due[f.version][1]}"
            for f in found.folders
            if f.role == role and (f.step, f.updates) != due.get(f.version, (f.step, f.updates))
        ]
    return wrong


def unmixed(found: Evidence) -> list[str]:
    """Check that trained samples were sampled and judged by the versions that the step began with."""
    live = {step["step"]: (step["policy_version"], step["reward_version"]) for step in found.steps}
    wrong = []
    for row in found.records:
        policy, reward = live.get(row["file_step"] - 1, (None, None))
        if row["reason"] == "" and set(row["policy_versions"]) - {policy}:
            wrong.append(
                f"{row['trajectory_id']}: trained at {policy}, sampled by {set(row['policy_versions'])}"
            )
        for vote in row["votes"]:
            if vote["reason"] == "" and set(vote["versions"]) - {reward}:
                wrong.append(
                    f"{row['trajectory_id']}: votes trained at {reward}, cast by {set(vote['versions'])}"
                )
    return wrong[:5]


def explained(found: Evidence) -> list[str]:
    """Check that the measures of a step count every row of its record, trained or with a reason."""
    wrong = []
    for step in found.steps[1:]:
        mine = [row for row in found.records if row["file_step"] == step["step"]]
        counted = Counter(f"steps/{row['reason'] or 'trained'}" for row in mine)
        reported = {n: int(v) for n, v in step["metrics"].items() if n.startswith("steps/") and v}
        if reported != dict(counted):
            wrong.append(
                f"step {step['step']}: the report says {reported}, the record {dict(counted)}"
            )
    return wrong


def monotone(found: Evidence) -> list[str]:
    """Versions only grow, by what was published, and each is on record."""
    known = {(row["role"], row["version"]) for row in found.weights}
    wrong = []
    for role, column in (("policy", "policy_version"), ("reward", "reward_version")):
        versions = [step[column] for step in found.steps]
        wrong += [f"{role} goes from {a} to {b}" for a, b in pairwise(versions) if b < a]
        wrong += [
            f"{role} {v} has no record of weights" for v in set(versions) if (role, v) not in known
        ]
    return wrong


def whole(found: Evidence) -> list[str]:
    """Every version on the disk is what its manifest says, and what the store announced; the newest are there."""
    announced = {(row["role"], row["version"]): row for row in found.weights}
    wrong = [f"{f.role} {f.version}: {'; '.join(f.wrong)}" for f in found.folders if f.wrong]
    for folder in found.folders:
        row = announced.get((folder.role, folder.version))
        if row is not None and row["digest"] and row["digest"] != folder.digest:
            wrong.append(f"{folder.role} {folder.version}: announced with another digest")
    there = {(folder.role, folder.version) for folder in found.folders}
    last = found.steps[-1] if found.steps else None
    for role, column in (("policy", "policy_version"), ("reward", "reward_version")):
        row = announced.get((role, last[column])) if last else None
        if row is not None and row["digest"] and (role, row["version"]) not in there:
            wrong.append(f"{role} {row['version']} is gone from the disk")
    return wrong


def measured(found: Evidence) -> list[str]:
    """Adaptation has dealt with every group that could be measured, and counted it once, with the numbers of the record."""
    counted = {row["group_id"]: (row["successes"], row["measured"]) for row in found.measurements}
    expected = {
        row["group_id"]: (row["successes"], row["measured"])
        for row in found.records
        if row["measured"]
    }
    wrong = [f"adaptation is not done with {found.outcomes} groups"] * bool(found.outcomes)
    wrong += [
        f"{group}: adaptation counted {counted.get(group)}, the record says {numbers}"
        for group, numbers in expected.items()
        if counted.get(group) != numbers
    ]
    return wrong + [f"{group} was counted and is in no record" for group in counted.keys() - expected.keys()]  # fmt: skip


def tidied(found: Evidence) -> list[str]:
    """Nothing of the run lies in Valkey for ever, no job of it waits, no rows for learners are left on the disk."""
    wrong = [f"{key} never expires" for key, ttl in found.keys.items() if not 0 <= ttl <= _WEEK_S]
    if found.batches:
        wrong.append(f"rows for learners are left: {found.batches}")
    return wrong


def emptied(found: Evidence) -> list[str]:
    """Check that an undisturbed run leaves no payload and no job in Valkey."""
    left = payloads(found)
    return [f"left in Valkey: {left}"] * bool(left) + [f"{found.jobs} jobs are left"] * bool(found.jobs)  # fmt: skip


def payloads(found: Evidence) -> list[str]:
    """Payloads of the run that wait for their time to run out."""
    return sorted(key for key in found.keys if key.startswith(_PAYLOADS))


def group_ids(run_id: str, step: int, count: int) -> list[str]:
    return [f"{run_id}-{step:05d}-train-{index:04d}" for index in range(count)]


def dropped(found: Evidence) -> dict[str, int]:
    """Count what the run did not train on, by reason, and rollouts that were not measured."""
    reasons = Counter(row["reason"] for row in found.records if row["reason"])
    failures = sum(int(s["metrics"].get("infrastructure_failures", 0)) for s in found.steps)
    return dict(reasons) | ({"infrastructure failures": failures} if failures else {})


def shape(found: Evidence) -> Row:
    """How much was played, pairs that measure rewrites included, and how far the models went."""
    first, last = found.steps[0], found.steps[-1]
    return {
        "steps": len(found.steps),
        "groups": len({row["group_id"] for row in found.records}),
        "rollouts": len({row["trajectory_id"] for row in found.records}),
        "trained": sum(row["reason"] == "" for row in found.records),
        "policy versions": last["policy_version"] - first["policy_version"],
        "reward versions": last["reward_version"] - first["reward_version"],
    }


ALWAYS: dict[str, Check] = {
    "finished": finished,
    "accounted": accounted,
    "kept": kept,
    "alike": alike,
    "once": once,
    "learnt": learnt,
    "unmixed": unmixed,
    "explained": explained,
    "monotone": monotone,
    "whole": whole,
    "measured": measured,
    "tidied": tidied,
}
