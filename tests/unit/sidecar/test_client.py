"""The client without a sidecar."""

from __future__ import annotations

import pytest

from triforge.sidecar import RefusedError, Sidecar


@pytest.mark.parametrize("url", ["", "env_adapter:8003"])
def test_an_address_that_is_none_is_not_tried_again(url: str) -> None:
    with Sidecar(url, "kitchen") as sidecar, pytest.raises(RefusedError, match="address of env_"):
        sidecar.draw(1)
