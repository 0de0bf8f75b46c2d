"""Puzzles of numbers: sums, remainders, equations, coins, subsets."""

from __future__ import annotations

from random import Random

from environments.puzzles.puzzle import Puzzle, demand, exact, numbers, row


def total(rng: Random, level: int) -> Puzzle:
    """Add and subtract `level + 2` numbers."""
    terms = [rng.randint(1, 9 + 5 * level) * rng.choice((1, -1)) for _ in range(level + 2)]
    shown = f"{terms[0]}" + "".join(f" {'+' if t > 0 else '-'} {abs(t)}" for t in terms[1:])
    value = sum(terms)
    return Puzzle(f"What is {shown}?", str(value), exact(value))


def remainder(rng: Random, level: int) -> Puzzle:
    """Find the remainder of a product of `level + 2` numbers."""
    factors = [rng.randint(2, 9 + 2 * level) for _ in range(level + 2)]
    modulus, value = rng.randint(3, 9 + 4 * level), 1
    for factor in factors:
        value = value * factor % modulus
    shown = " * ".join(map(str, factors))
    return Puzzle(f"What remains of {shown} after division by {modulus}?", str(value), exact(value))


def equation(rng: Random, level: int) -> Puzzle:
    """Find the number that `level + 1` operations were done to."""
    start = rng.randint(1, 10 + 5 * level)
    value, steps = start, list[str]()
    for _ in range(level + 1):
        by = rng.randint(2, 5 + level)
        verb, value = rng.choice(
            (("added", value + by), ("subtracted", value - by), ("multiplied by", value * by))
        )
        steps.append(f"{verb} {by}")
    text = f"I took a number and then, in this order: {', '.join(steps)}. I got {value}. Which number did I take?"
    return Puzzle(text, str(start), exact(start))


def coins(rng: Random, level: int) -> Puzzle:
    """Pay an amount with few coins; more coins than needed solve a part of it."""
    values = sorted({1, *(rng.randint(2, 9 + 3 * level) for _ in range(2 + level // 2))})
    amount = rng.randint(6 + 4 * level, 12 + 8 * level)
    best: list[tuple[int, ...]] = [()]
    for sum_ in range(1, amount + 1):
        ways = (((*best[sum_ - coin], coin)) for coin in values if coin <= sum_)
        best.append(min(ways, key=len))
    fewest = best[amount]

    def verify(given: str) -> float:
        paid = numbers(given)
        demand(bool(paid), "the coins")
        allowed = set(paid) <= set(values) and sum(paid) == amount
        return len(fewest) / len(paid) if allowed else 0.0

    text = (
        f"There are coins of {row(values)}, as many as you like. Pay {amount} exactly with as few as possible. "
        "Answer with the coins, such as: 3 3 1"
    )
    return Puzzle(text, row(fewest), verify)


def subset(rng: Random, level: int) -> Puzzle:
    """Choose numbers of a list of `level + 4` that add up to a target."""
    listed = rng.sample(range(1, 20 + 10 * level), level + 4)
    chosen = rng.sample(listed, rng.randint(2, level + 3))
    target = sum(chosen)

    def verify(given: str) -> float:
        taken = numbers(given)
        return float(
            len(set(taken)) == len(taken) and set(taken) <= set(listed) and sum(taken) == target
        )

    text = f"Which of the numbers {row(listed)} add up to {target}? Take each once at most."
    return Puzzle(text, row(chosen), verify)
