"""Which models diagnose, rewrite and prove, by the deployment's addresses.

An address with a path (`https://host/v1`) is an OpenAI-compatible endpoint, one without is a policy service. A fragment
names the model (`https://host/v1#name`); without it the first that the endpoint lists is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urldefrag, urlsplit

from services.env_adapter.adaptation.candidates import Solver
from services.env_adapter.adaptation.proposals import ProposalWriter
from triforge.access.exposure import is_loopback
from triforge.clients.openai import OpenAIGenerate, is_openai_url
from triforge.clients.policy import PolicyClient
from triforge.config import Settings
from triforge.errors import ConfigError
from triforge.rollout.protocols import EnvironmentFamily, Generate
from triforge.telemetry.logs import masked


def endpoint(
    address: str, settings: Settings, option: str = "TRIFORGE_REWRITER_MODEL_URL"
) -> Generate:
    """The model behind the address that `option` names.

    Raises:
        ConfigError: keys are asked for, and the address would be sent the services' secret although nothing says that
            it is this deployment's own.
    """
    url, model = urldefrag(address)
    if is_openai_url(url):
        key = settings.api_key.get_secret_value()
        return OpenAIGenerate(url, model, api_key=key, timeout_s=settings.request_s)
    if settings.own_key and not _is_own(url, settings):
        raise ConfigError(
            f"{option}: given {masked(address)!r}, which without a path stands for a policy service of this deployment and would be "
            "sent TRIFORGE_SERVICE_SECRET: name its host in TRIFORGE_OWN_HOSTS if it is one, else give the path of the "
            "endpoint (https://host/v1)"
        )
    return PolicyClient.from_settings(
        settings.model_copy(update={"rewriter_model_url": url}), "rewriter"
    )


def _is_own(url: str, settings: Settings) -> bool:
    """Whether a policy service is this deployment's own.

    It is on this machine, under a name without a dot (a service of the same compose file or namespace), on a host where
    another service of ours is, or on one of `own_hosts`.
    """
    host = urlsplit(url).hostname or ""
    if is_loopback(host) or not set(".:") & set(host):
        return True
    return host in settings.service_hosts


def make_writer(settings: Settings, family: Callable[[str], EnvironmentFamily]) -> ProposalWriter:
    """A writer that asks the models of `settings`: `rewriter_model_url`, and where given `diagnosis_url` and `solver_url`.

    A policy service is held to the choices by a regular expression, any other endpoint by a JSON schema.
    """

    def other(name: str) -> Generate | None:
        address = str(getattr(settings, name))
        return endpoint(address, settings, f"TRIFORGE_{name.upper()}") if address else None

    solves = other("solver_url")
    return ProposalWriter(
        endpoint(settings.rewriter_model_url, settings),
        family,
        diagnoses=other("diagnosis_url"),
        solver=Solver(solves) if solves else None,
        form="json" if is_openai_url(urldefrag(settings.rewriter_model_url)[0]) else "regex",
    )
