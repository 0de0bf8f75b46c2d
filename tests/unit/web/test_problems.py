"""Sentences about what validation refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from triforge.types import Report
from triforge.web.problems import input_error


def test_a_list_of_wrong_items_is_not_also_called_too_short() -> None:
    with pytest.raises(ValidationError) as found:
        Report.model_validate({"policy_version": -1, "rollouts": [{"id": "0" * 12}]})
    fields = [problem.partition(":")[0] for problem in input_error(found.value).problems]
    assert fields == ["policy_version", "rollouts.0"]
