"""Games of the household for ALFWorld's engine: as PDDL problems, and as game files in the layout of the official ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

from environments.alfworld.files import GAME, SPLIT, TASK_TYPES
from environments.alfworld.goals import AGENT, formula
from environments.alfworld.pddl import STATES, SUITS
from environments.household.catalogue import ALFWORLD, CONTAINERS, DEVICE, KNIVES, SLICEABLE
from environments.household.wording import announce
from environments.household.world import Thing, World

_START: Final = "loc_bar_start"


def problem(world: World) -> str:
    """Return the problem as PDDL text."""
    ids = _identifiers((*world.receptacles, *world.objects))
    facts = [f"(atlocation {AGENT} {_START})", *_receptacle_facts(world, ids)]
    facts += _object_facts(world, ids)
    # the kinds in use, and those that ALFWorld's domain names whether they occur or not
    places = sorted({*DEVICE.values(), *(thing.kind for thing in world.receptacles)})
    kinds = sorted({*KNIVES, *(thing.kind for thing in world.objects)})
    facts += [
        f"(cancontain {place}type {kind}type)"
        for place in places
        for kind in kinds
        if place in ALFWORLD.homes.get(kind, ())
    ]
    goal = world.goal.type, world.goal.object, world.goal.target
    locations = [_START, *(f"loc_{ids[thing]}" for thing in world.receptacles)]
    declared = [
        f"{AGENT} - agent",
        *(f"{name} - location" for name in locations),
        *(f"{ids[thing]} - receptacle" for thing in world.receptacles),
        *(f"{ids[thing]} - object" for thing in world.objects),
        *(f"{place}type - rtype" for place in places),
        *(f"{kind}type - otype" for kind in kinds),
    ]
    return (
        "(define (problem household)\n(:domain alfred)\n(:objects\n"
        + "\n".join(declared)
        + "\n)\n(:init\n"
        + "\n".join(facts)
        + f"\n)\n(:goal {formula(goal)})\n)\n"
    )


def _identifiers(things: tuple[Thing, ...]) -> dict[Thing, str]:
    """Return an id for each thing. ALFWorld numbers the things of a kind from the last id to the first."""
    counts = Counter(thing.kind for thing in things)
    return {thing: _id(thing, counts[thing.kind] - thing.number) for thing in things}


def _id(thing: Thing, rank: int) -> str:
    if thing.kind.endswith("basin"):
        return f"{thing.kind.removesuffix('basin')}_bar_{rank:02d}_bar_{thing.kind}"
    return f"{thing.kind}_bar_{rank:02d}"


def _receptacle_facts(world: World, ids: dict[Thing, str]) -> list[str]:
    out = []
    for rec, thing in enumerate(world.receptacles):
        name = ids[thing]
        out.append(f"(receptacletype {name} {thing.kind}type)")
        out.append(f"(receptacleatlocation {name} loc_{name})")
        if world.openable >> rec & 1:
            out.append(f"(openable {name})")
            if world.is_open(world.start(), rec):
                out.append(f"(opened {name})")
    return out


def _object_facts(world: World, ids: dict[Thing, str]) -> list[str]:
    out = []
    for obj, thing in enumerate(world.objects):
        name, place = ids[thing], ids[world.receptacles[world.where[obj]]]
        out.append(f"(objecttype {name} {thing.kind}type)")
        out.append(f"(inreceptacle {name} {place})")
        out.append(f"(objectatlocation {name} loc_{place})")
        if thing.kind in ALFWORLD.lamps:
            out.append(f"(toggleable {name})")
            continue
        out.append(f"(pickupable {name})")
        out += [f"({SUITS[s]} {name})" for s in STATES if thing.kind in ALFWORLD.suits[s]]
        if thing.kind in CONTAINERS:
            out.append(f"(isreceptacleobject {name})")
        if thing.kind in SLICEABLE:
            out.append(f"(sliceable {name})")
    return out


def write_game(out: Path, number: int, seed: int, world: World, sources: dict[str, str]) -> Path:
    """Write a game below `out`, which `ALFWORLD_DATA` will name; return the game file.

    `number` stands where official games name their scene; `sources` are the engine's `domain` and `grammar`.
    """
    goal, task = world.goal, announce(world)
    lamp = goal.type == "look"
    name = f"{TASK_TYPES[goal.type]}-{goal.object}-None-{goal.target}-{number}"
    folder = out / SPLIT / name / f"trial_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "task_type": TASK_TYPES[goal.type],
        "pddl_params": {
            "object_target": goal.object,
            "parent_target": "" if lamp else goal.target,
            "toggle_target": goal.target if lamp else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": task}]},
    }
    (folder / "traj_data.json").write_text(json.dumps(described, indent=1) + "\n")
    game = {
        "pddl_domain": sources["domain"],
        "grammar": sources["grammar"].replace("UNKNOWN GOAL", task),
        "pddl_problem": problem(world),
        "solvable": True,
    }
    path = folder / GAME
    path.write_text(json.dumps(game) + "\n")
    return path
