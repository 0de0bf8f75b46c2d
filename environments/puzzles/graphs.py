"""Puzzles of places and ways: orders, shortest ways, colours."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from environments.puzzles.puzzle import Puzzle, demand, numbers, row

_Edges = set[tuple[int, int]]


def _shown(edges: _Edges) -> str:
    return ", ".join(f"{a}-{b}" for a, b in sorted(edges))


def _links(rng: Random, nodes: int, more: int) -> _Edges:
    """Draw `more` links between nodes, each with its smaller end first."""
    return {tuple(sorted(rng.sample(range(1, nodes + 1), 2))) for _ in range(more)}  # type: ignore[misc]


def chores(rng: Random, level: int) -> Puzzle:
    """Put `level + 3` chores in an order that keeps all rules; the share of rules that an order keeps is its score."""
    right = rng.sample(range(1, level + 4), level + 3)
    rules = {tuple(sorted(rng.sample(range(len(right)), 2))) for _ in range(2 * level + 3)}
    before = sorted((right[a], right[b]) for a, b in rules)

    def verify(given: str) -> float:
        order = numbers(given)
        demand(sorted(order) == sorted(right), "every chore once")
        return sum(order.index(a) < order.index(b) for a, b in before) / len(before)

    listed = ", ".join(f"{a} before {b}" for a, b in before)
    return Puzzle(
        f"Put the chores 1 to {len(right)} in an order with {listed}. Answer with all their numbers.",
        row(right),
        verify,
    )


def way(rng: Random, level: int) -> Puzzle:
    """Find a shortest way through `level + 4` places; a longer one has as much less of the score."""
    nodes = level + 4
    line = rng.sample(range(1, nodes + 1), nodes)
    edges = {(min(pair), max(pair)) for pair in pairwise(line)} | _links(rng, nodes, level // 2 + 1)
    start, goal = line[0], line[-1]
    came, edge_of = {start: 0}, [start]
    for node in edge_of:  # grows while it is read: breadth first
        for a, b in sorted(edges):
            other = b if a == node else a if b == node else 0
            if other and other not in came:
                came[other] = node
                edge_of.append(other)
    shortest = [goal]
    while shortest[-1] != start:
        shortest.append(came[shortest[-1]])
    shortest.reverse()

    def verify(given: str) -> float:
        walked = numbers(given)
        demand(len(walked) > 1, "the places on the way")
        steps = {(min(pair), max(pair)) for pair in pairwise(walked)}
        leads = walked[0] == start and walked[-1] == goal and steps <= edges
        return (len(shortest) - 1) / (len(walked) - 1) if leads else 0.0

    text = f"Roads join these places: {_shown(edges)}. Go from {start} to {goal} by as few roads as possible. Answer with all places on the way."
    return Puzzle(text, row(shortest), verify)


def colours(rng: Random, level: int) -> Puzzle:
    """Colour `level + 4` places with three colours; the share of roads between two colours is the score."""
    nodes = level + 4
    right = [rng.choice("rgb") for _ in range(nodes)]
    right[:2] = "rg"  # so that there is a road
    edges = {(a, b) for a, b in _links(rng, nodes, 2 * nodes) if right[a - 1] != right[b - 1]}
    edges.add((1, 2))

    def verify(given: str) -> float:
        painted = given.lower().replace(",", " ").split()
        demand(len(painted) == nodes and set(painted) <= {*"rgb"}, "a letter r, g or b a place")
        return sum(painted[a - 1] != painted[b - 1] for a, b in edges) / len(edges)

    text = (
        f"Roads join the places 1 to {nodes}: {_shown(edges)}. Give each place a colour, r, g or b, so that each road joins "
        "two colours. Answer with the colours of all places in their order."
    )
    return Puzzle(text, row(right), verify)
