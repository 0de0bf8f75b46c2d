"""Are the lines of docs/train.md#over-rest still what the test of the stack takes them for?"""

from __future__ import annotations

import re

from scripts.compose_test.walk_through import POOL, by_hand


def test_the_lines_make_a_pool_start_a_run_and_watch_it_at_published_apis() -> None:
    script = by_hand({"pools": 1, "runs": 2})
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", script)) == {"1", "2"}
    assert f'"name": "{POOL}"' in script
    order = ["1/v1/pools -H", "2/v1/runs -H", "/events", "/steps", "/export"]
    places = [script.index(text) for text in order]
    assert places == sorted(places)
    assert script.splitlines()[-1] == 'printf "\\n%s\\n" "$RUN"'
