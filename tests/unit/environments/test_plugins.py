"""Families by their path: what is named is found or refused with a reason, and imported only where that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from triforge.config import Settings
from triforge.environments import plugins, registry
from triforge.environments.plugins import Allowed
from triforge.errors import ConfigError, InputError

MODULE = """
from triforge.testing.fakes import FakeFamily as Mine
FAMILY, NUMBER = Mine(), 3
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text(MODULE)
    (tmp_path / "broken_one.py").write_text("x = 1\nx.y\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_path_names_a_family_or_its_class() -> None:
    assert registry.family("of_mine:FAMILY").name == registry.family("of_mine:Mine").name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("of_mine:NOPE", r"has no attribute 'NOPE'.*looked for in .*PYTHONPATH"),
        ("not_there:FAMILY", r"No module named 'not_there'"),
        ("broken_one:FAMILY", r"AttributeError: 'int' object has no attribute 'y' \(.*broken_one.py:2\)"),
        ("of_mine:FAMILY()", r"expected a path such as my_module:NAME"),
        ("household:FAMILY", r"without names after a colon"),
        ("no_such_family", r"known are: .*household.*my_module:FAMILY"),
        ("of_mine:" + "F" * 60, r"at most 64 characters"),
    ],
)  # fmt: skip
def test_what_names_no_family_is_refused_with_the_reason(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        registry.family(name)


def test_a_path_to_another_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="'of_mine:NUMBER' gives a int, not an Environment"):
        registry.family("of_mine:NUMBER")


@pytest.mark.parametrize(
    ("auth", "listed", "passes"),
    [
        ("auto", "", True),
        ("keys", "", False),
        ("keys", "any", True),
        ("keys", "other, of_mine", True),
        ("keys", "of_mine:FAMILY", True),
        ("keys", "of_mine:OTHER,of", False),
        ("auto", "other", False),
    ],
)
def test_where_keys_are_asked_for_only_what_is_listed_may_be_named(
    auth: str, listed: str, passes: bool
) -> None:
    allowed = Allowed.of(Settings(auth=auth, plugins=listed))  # type: ignore[arg-type]
    if passes:
        allowed.demand("of_mine:FAMILY", "environment")
    else:
        with pytest.raises(InputError, match=r"environment: given 'of_mine:FAMILY'.*TRIFORGE_PLUG"):
            allowed.demand("of_mine:FAMILY", "environment")


def test_a_path_that_may_not_be_named_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORGE_PLUGINS", "another")
    plugins.here.cache_clear()
    try:
        with pytest.raises(InputError, match="TRIFORGE_PLUGINS"):
            registry.family("broken_one:FAMILY")
    finally:
        plugins.here.cache_clear()
