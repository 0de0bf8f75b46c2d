"""Seeds of numbered things of a run."""

from triforge.rollout.seeds import nth_seed


def test_numbered_seeds_differ_and_are_those_that_the_reports_were_drawn_with():
    assert nth_seed(5, 3) == 5_000_018
    assert nth_seed(5, 3, 2) == 5_000_018 * 10_007 + 2
    found = [nth_seed(s, n, w) for s in (0, 1, 2) for n in (0, 1, 999_999) for w in (0, 1, 9_999)]
    assert len(set(found)) == len(found)
