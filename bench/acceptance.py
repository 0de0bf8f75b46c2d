"""Print how often a rewrite is accepted: one that changed nothing, and one that changed as wished.

Both rules side by side, K = 8 rollouts a group, band (0.2, 0.8). The published rule is computed exactly, given that the
parent's first group triggered the rewrite. The confident rule is simulated with a fixed seed (its measurement uses
fresh groups only, so the trigger does not matter); `cost` is the mean number of rollouts each arm was played.

Run: python bench/acceptance.py [trials]
"""

import math
import random
import sys

from triforge.algorithms.adaptation import SequentialTest, paper_accepts

K, LOW, HIGH, ALPHA, MAX_ROLLOUTS = 8, 0.2, 0.8, 0.05, 64
UNCHANGED = (0.02, 0.05, 0.1, 0.15, 0.2, 0.5)
CHANGES = (
    (0.0, 0.25),
    (0.05, 0.3),
    (0.1, 0.35),
    (0.15, 0.4),
    (0.2, 0.45),
    (0.05, 0.2),
    (0.1, 0.25),
    (0.1, 0.5),
    (0.5, 0.75),
)


def binomial(k: int, p: float) -> float:
    return math.comb(K, k) * p**k * (1 - p) ** (K - k)


def published(parent: float, candidate: float) -> float:
    """Exact P(accept | the first group was below the band) of an easier rewrite."""
    trigger = [k for k in range(K + 1) if k / K < LOW]
    both = sum(
        binomial(before, parent) * binomial(after, candidate)
        for before in trigger
        for after in range(K + 1)
        if paper_accepts("easier", before / K, after / K, LOW, HIGH)
    )
    return both / sum(binomial(k, parent) for k in trigger)


def confident(parent: float, candidate: float, trials: int) -> tuple[float, float]:
    """Share of accepted easier rewrites, and the mean rollouts an arm."""
    draw, accepted, cost = random.Random(17), 0, 0
    for _ in range(trials):
        test = SequentialTest("easier", low=LOW, high=HIGH, alpha=ALPHA, max_rollouts=MAX_ROLLOUTS)
        while test.decision.verdict == "continue":
            before = sum(draw.random() < parent for _ in range(K))
            after = sum(draw.random() < candidate for _ in range(K))
            test.add((before, K), (after, K))
        accepted += test.decision.verdict == "accept"
        cost += test.decision.candidate[1]
    return accepted / trials, cost / trials


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    print("| success, parent -> candidate (easier) | published rule | confident | cost |")
    print("|---|---|---|---|")
    for parent, candidate in [(p, p) for p in UNCHANGED] + list(CHANGES):
        share, cost = confident(parent, candidate, trials)
        print(
            f"| {parent:.2f} -> {candidate:.2f} | {published(parent, candidate):.3f} | {share:.3f} | {cost:.0f} |"
        )
    print("\nHarder is the mirror image: replace every p by 1 - p.")


if __name__ == "__main__":
    main()
