"""The model behind an address."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from services.env_adapter.adaptation.endpoints import endpoint, make_writer
from triforge.clients.openai import OpenAIGenerate
from triforge.clients.policy import PolicyClient
from triforge.config import Settings
from triforge.environments import registry
from triforge.errors import ConfigError


def parts_of(**urls: str) -> dict[str, Any]:
    """The writer's parts, by what they are for."""
    writer: Any = make_writer(Settings(**urls), registry.family)
    return {
        "diagnosis": writer._diagnosis._generate,
        "rewriter": writer._rewriter._generate,
        "form": writer._rewriter._form,
        "solver": writer._checks._solver,
    }


@pytest.mark.parametrize(("address", "model"), [("https://h/v1", ""), ("https://h/v1#big", "big")])
def test_an_address_with_a_path_is_an_openai_endpoint_and_a_fragment_its_model(
    address: str, model: str
) -> None:
    found: Any = endpoint(address, Settings())
    assert isinstance(found, OpenAIGenerate)
    assert found._model == model


def test_one_model_does_everything_unless_others_are_named() -> None:
    found = parts_of(rewriter_model_url="http://10.0.0.1:8021")
    assert found["diagnosis"] is found["rewriter"]
    assert (found["form"], found["solver"]) == ("regex", None)


def test_diagnosis_and_solver_may_be_models_of_their_own() -> None:
    found = parts_of(
        rewriter_model_url="https://h/v1",
        diagnosis_url="http://10.0.0.1:8021",
        solver_url="https://h/v1#big",
    )
    assert isinstance(found["rewriter"], OpenAIGenerate)
    assert isinstance(found["diagnosis"], PolicyClient)
    assert found["solver"] is not None
    assert found["form"] == "json"


def keyed(**fields: Any) -> Settings:
    return Settings(auth="keys", service_secret=SecretStr("s" * 24), **fields)


def key_of(found: Any) -> str:
    return str(found._http.headers.get("authorization", ""))


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("http://127.0.0.1:8021", {}),
        ("http://localhost:8021", {}),
        ("http://[::1]:8021", {}),
        ("http://rewriter-model:8021", {}),
        ("http://10.0.0.7:8021", {"reward_model_url": "http://10.0.0.7:8011"}),
        ("https://services.example.org", {"own_hosts": "a.example.org, Services.example.org"}),
        ("http://[fd00::1]:8021", {"own_hosts": "[fd00::1]"}),
    ],
)
def test_services_of_ours_are_sent_the_secret_of_the_services(
    address: str, fields: dict[str, Any]
) -> None:
    assert key_of(endpoint(address, keyed(**fields))) == f"Bearer {'s' * 24}"


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("https://api.example.org", {}),
        ("http://10.0.0.7:8021", {}),
        ("https://api.example.org/", {"own_hosts": "example.org"}),
        ("https://u:hidden@api.example.org", {}),
        ("http://10.0.0.7:8021", {"rewriter_model_url": "http://10.0.0.7:8021", "diagnosis_url": "http://10.0.0.7"}),
    ],
)  # fmt: skip
def test_an_address_that_nothing_calls_ours_is_sent_no_secret_and_refused(
    address: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"TRIFORGE_DIAGNOSIS_URL.*TRIFORGE_OWN_HOSTS") as refused:
        endpoint(address, keyed(**fields), "TRIFORGE_DIAGNOSIS_URL")
    assert "hidden" not in refused.value.detail
    assert isinstance(endpoint(address, Settings(**fields)), PolicyClient), (
        "where no keys are asked for"
    )


def test_the_models_that_diagnose_and_prove_follow_the_same_rule() -> None:
    for name in ("rewriter_model_url", "diagnosis_url", "solver_url"):
        with pytest.raises(ConfigError, match=f"TRIFORGE_{name.upper()}"):
            make_writer(keyed(**{name: "https://api.example.org"}), registry.family)


def test_an_endpoint_with_a_path_is_sent_the_engines_key_only() -> None:
    found = endpoint("https://api.example.org/v1", keyed(api_key=SecretStr("of-the-engines")))
    assert key_of(found) == "Bearer of-the-engines"
