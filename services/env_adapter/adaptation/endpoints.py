"""The models that diagnose, rewrite and prove, by the deployment's addresses.

An address with a path (`https://host/v1`) is an OpenAI-compatible endpoint, an address without a path is a policy service.
A fragment names the model (`https://host/v1#name`); without it the first model of the endpoint's list is used.
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
    """Return a client of the model at the address that `option` gives.

    Raises:
        ConfigError: the client would send the services' secret to a policy service that is not known to belong to this
            deployment.
    """
    url, model = urldefrag(address)
    if is_openai_url(url):
        key = settings.api_key.get_secret_value()
        return OpenAIGenerate(url, model, api_key=key, timeout_s=settings.request_s)
    if settings.own_key and not _is_own(url, settings):
        raise ConfigError(
            f"{option}: given {masked(address)!r}, which without a path is a policy service and would receive "
            "TRIFORGE_SERVICE_SECRET: name its host in TRIFORGE_OWN_HOSTS if it belongs to this deployment, else give the path "
            "of the endpoint (https://host/v1)"
        )
    return PolicyClient.from_settings(
        settings.model_copy(update={"rewriter_model_url": url}), "rewriter"
    )


def _is_own(url: str, settings: Settings) -> bool:
    """Return whether a policy service belongs to this deployment.

    It does on this machine, under a name without a dot (the same compose file or namespace), on the host of another
    service, and on one of `own_hosts`.
    """
    host = urlsplit(url).hostname or ""
    if is_loopback(host) or not set(".:") & set(host):
        return True
    return host in settings.service_hosts


def make_writer(settings: Settings, family: Callable[[str], EnvironmentFamily]) -> ProposalWriter:
    """Make a writer with the models of `settings`: `rewriter_model_url`, and `diagnosis_url` and `solver_url` if given.

    A regular expression constrains a policy service to the choices, a JSON schema any other endpoint.
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
