"""The client without a sidecar."""

from __future__ import annotations

import random

import httpx
import pytest

from triforge.sidecar import RefusedError, Sidecar


@pytest.mark.parametrize("url", ["", "env_adapter:8003"])
def test_an_address_that_is_none_is_not_tried_again(url: str) -> None:
    with Sidecar(url, "kitchen") as sidecar, pytest.raises(RefusedError, match="address of env_"):
        sidecar.draw(1)


def test_waiting_does_not_touch_the_random_numbers_of_the_trainer() -> None:
    answers = [httpx.Response(429), httpx.Response(200, json={"step": 3})]
    transport = httpx.MockTransport(lambda _: answers.pop(0))
    before = random.getstate()
    with Sidecar("http://sidecar", "kitchen", transport=transport) as sidecar:
        assert sidecar.curriculum() == {"step": 3}
    assert random.getstate() == before
