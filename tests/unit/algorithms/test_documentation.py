"""docs/methods.md names every reason."""

from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_reason_a_sample_is_not_trained_on_is_documented():
    from methods.cure import arithmetic as unit_tests
    from triforge.algorithms import advantages, credit, filters
    from triforge.algorithms.jobs import imitation

    reasons = [
        *(advantages.UNMEASURED, advantages.LONE, advantages.LONE_VOTE, advantages.NEGATIVE),
        *(
            advantages.ZERO_SPREAD,
            advantages.ZERO_ADVANTAGE,
            advantages.UNANIMOUS,
            advantages.UNREWARDED,
        ),
        *(credit.NO_OUTCOME, credit.NOT_JUDGED, credit.NOT_TRAINED, credit.NO_TARGET),
        *(filters.NO_MEASUREMENT, filters.OUTSIDE_POLICY_BAND, filters.OUTSIDE_REWARD_BAND),
        *(filters.ONE_SIDED, filters.LOW_SPREAD, imitation.NOT_A_SUCCESS, imitation.NO_PAIR),
        unit_tests.NO_GOOD_PROGRAM,
    ]
    assert [reason for reason in reasons if f"`{reason}`" not in PAGE] == []
