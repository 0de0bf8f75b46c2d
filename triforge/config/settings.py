"""Addresses and secrets of a deployment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from triforge.config.base import (
    NOWHERE,
    ByName,
    OptionalUrl,
    Port,
    Positive,
    Role,
    Seconds,
    Section,
    Url,
    by_name,
)
from triforge.config.document import checked
from triforge.errors import ConfigError
from triforge.telemetry.logs import masked

_SHORTEST: Final = 24  # characters of the services' secret
SERVICES: Final = (
    "policy_model", "reward_model", "rewriter_model", "reward", "env_adapter", "trainer", "dashboard",
)  # fmt: skip
_SERVICES: Final = ("policy_model", "reward_model", "reward", "env_adapter", "trainer")


_HERE: Final = "127.0.0.1"


def reachable(host: str) -> str:
    """Return the host, as URLs write it, under which this machine reaches what listens on a host; a wildcard is no address."""
    known = {"": _HERE, "0.0.0.0": _HERE, "localhost": _HERE, "::": "[::1]"}  # noqa: S104
    return known.get(host, f"[{host}]" if ":" in host else host)


class Settings(Section):
    """Addresses and secrets of a deployment, from environment variables named `TRIFORGE_<FIELD>`."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Valkey or Redis."""
    database_url: str = "sqlite:///var/triforge.sqlite"
    """SQLAlchemy URL of the store."""
    artifacts_url: str = "var/artifacts"
    """Folder, or URL and a folder for weights: `s3://bucket/prefix#/data/artifacts` (extra `s3`). `FOLDER#/dev/shm/NAME` has versions
    in memory."""
    config: str = ""
    """TOML document with the defaults of runs."""
    host: str = "127.0.0.1"
    """Address the APIs listen on; the addresses of services that are not set follow it."""
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of `/metrics` and `/healthz` of a worker or learner; 0 serves none."""
    log: Literal["text", "json"] = "text"
    """Form of log lines; the containers set `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of log lines; `debug` includes requests and the lines of libraries."""
    otlp_endpoint: str = ""
    """Receiver of traces (OTLP over HTTP; extra `otel`); empty: OpenTelemetry's own variables."""
    policy_model_url: OptionalUrl = "http://127.0.0.1:8001"
    """Policy service, role policy; `none` where another trainer has the policy."""
    agents_url: OptionalUrl = NOWHERE
    """Address of the same service for agents in sessions (`https://triforge.example.com`); `none`: the one above."""
    reward_model_url: OptionalUrl = "http://127.0.0.1:8011"
    """Policy service, role reward; `none` where no run asks for votes."""
    rewriter_model_url: OptionalUrl = "http://127.0.0.1:8021"
    """Policy service, role rewriter, or any OpenAI-compatible URL; `#name` names its model; `none` where no run rewrites
    tasks."""
    diagnosis_url: str = ""
    """Model that explains failures, addressed likewise; empty: the rewriter."""
    solver_url: str = ""
    """Stronger policy that proves rewrites by solving them, addressed likewise; empty: none."""
    encoder_url: OptionalUrl = NOWHERE
    """Model that embeds screenshots and texts (`POST /v1/embeddings`), for `reward.kind = "vlm_rl"`; `none` where no
    run compares them."""
    models: ByName = ""
    """Policy services of further models of a document, `name=http://host:port` each, separated by commas."""
    model_engines: ByName = ""
    """Their engines for `triforge up`, written likewise, an item for each engine; `triforge up` starts missing ones."""
    reward_url: OptionalUrl = "http://127.0.0.1:8002"
    """Reward service; `none` likewise."""
    env_adapter_url: Url = "http://127.0.0.1:8003"
    """env_adapter service."""
    trainer_url: Url = "http://127.0.0.1:8004"
    """Trainer service."""
    adapt_workers: bool = True
    """Whether the deployment has adapt workers; without them no run changes tasks."""
    dashboard_url: Url = "http://127.0.0.1:8005"
    """Dashboard."""
    engines: str = "http://127.0.0.1:9001"
    """Comma-separated engines of a policy service: `http://host:port`, or `dns+http://name:port` for an engine at each resolved
    address; with `vllm+` before it, engines that are vLLM."""
    policy_engines: str = ""
    """Engines for `triforge up`, written like `TRIFORGE_ENGINES`; empty starts a local one."""
    reward_engines: str = ""
    """Likewise for the role reward."""
    rewriter_engines: str = ""
    """Likewise for the role rewriter."""
    policy_engine_port: Port = 9001
    """Port of the first engine that `triforge up` starts for the role policy; further ones have those after it."""
    reward_engine_port: Port = 9011
    """Likewise for the role reward."""
    rewriter_engine_port: Port = 9021
    """Likewise for the role rewriter."""
    engine_python: str = ""
    """Interpreter that has the SGLang or vLLM that `triforge up` starts (`machine.engine`); empty: that of `.venv-sglang` or
    `.venv-vllm` in the checkout."""
    engine_in_flight: Positive = 512
    """Most samples in flight at one engine; further ones wait."""
    max_waiting: Positive = 4096
    """Most samples that wait in a policy service; more are answered 429."""
    queue_s: Seconds = 60.0
    """A request that waits longer for an engine is answered 429."""
    request_s: Seconds = 600.0
    """Longest answer of an engine; callers wait `TRIFORGE_QUEUE_S` more."""
    drain_s: Seconds = 10.0
    """Time that a policy service gives running requests when it ends."""
    role: Role = "policy"
    """Model of a policy service: policy, reward, rewriter, or the name of a further one."""
    model: str = ""
    """Model folder of a policy service at its start."""
    api_key: SecretStr = SecretStr("")
    """Key of the engines."""
    admin_api_key: SecretStr = SecretStr("")
    """Key for the engines' weight and pause routes."""
    auth: Literal["auto", "open", "keys"] = "auto"
    """`keys` requires API keys or the services' secret at every API; `auto` requires none and listens on this machine only;
    `open` requires none on any host."""
    service_secret: SecretStr = SecretStr("")
    """Secret that services and workers send each other where keys are required; 24 characters or more."""
    key: SecretStr = SecretStr("")
    """API key that the command line and other clients send."""
    own_hosts: str = ""
    """Comma-separated further hosts of this deployment (docs/operate.md#security): the services' secret is sent to its hosts
    only, and where no keys are required the APIs answer under these names too."""
    env_egress: str = ""
    """Addresses that tasks and options of pools may make the workers reach: `any`, `public`, `docker`, hosts, addresses and
    networks, separated by commas (docs/environments.md). Empty: `public` where keys are required, else `any`."""
    plugins: str = ""
    """Your own modules that pools and runs may name as `module:NAME`, separated by commas: families, reward functions,
    estimators and the like (docs/operate.md#security). Empty: none where keys are required, else `any`."""
    mcp_servers: str = ""
    """JSON file of the MCP servers whose tools tasks of the family `mcp` may name (docs/operate.md#security)."""
    containers: str = ""
    """Docker engine for tasks of the family `harbor` that need a container, such as
    `unix:///var/run/docker.sock`; empty refuses them (docs/operate.md#security)."""
    containers_network: str = "none"
    """Docker's network for the `RUN` lines of such tasks; scripts of models and tests have none."""
    cors_origins: str = ""
    """Comma-separated web origins whose pages may send requests to the APIs; empty: none."""
    handover: Literal["disk", "distributed"] = "disk"
    """Transport of new weights to the engines; their folder is written in any case."""
    handover_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of a broadcast; `auto` is nccl for a learner on a GPU, gloo for one on a CPU."""
    handover_host: str = "127.0.0.1"
    """Host name of a broadcasting learner for policy services and engines."""
    handover_timeout_s: Seconds = 300.0
    """Longest broadcast to an engine, which then reads the folder; longest load of a folder or an adapter, after which the
    engine has failed."""
    handover_group: Positive = 8
    """Most engines of one broadcast: the learner sends once for all of them, and if one fails all of them read the folder."""
    shared_engines: bool = False
    """Whether the engines of a policy service also serve other models, all of them adapters over one fixed base
    (`models.NAME.engines_of`; `triforge up` sets it)."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """Treatment of running requests while weights change."""
    weights_check: Literal["contents", "sizes"] = "contents"
    """Check of a new folder by a policy service before an engine loads it."""
    weights_verify: Literal["tensors", "info"] = "tensors"
    """Proof of an engine after an update: sampled tensors, or its version only."""
    max_body_mb: Positive = 64
    """Largest body in MiB of `/v1/generate`, `/v1/chat/completions`, `/v1/completions` and `/v1/judge`; other routes take
    less."""
    max_upload_mb: Positive = 256
    """Largest upload to `POST /v1/pools` in MiB."""
    session_days: Positive = 30
    """Days for which the turns of an ended session are kept; records of runs keep theirs."""
    lease_s: Seconds = 10.0
    """Lease of a job; renewed while a worker works."""
    resend_s: Seconds = 20.0
    """Time after which a job that no worker started is sent again."""

    @model_validator(mode="before")
    @classmethod
    def _follow_host(cls, fields: Any) -> Any:
        """Give services without an address that of the host on which they listen."""
        if not isinstance(fields, Mapping) or not isinstance(fields.get("host"), str):
            return fields
        host = fields["host"].strip("[]")
        urls = {name: cls.model_fields[name].default for name in (f"{one}_url" for one in SERVICES)}
        own = {name: url.replace(_HERE, reachable(host)) for name, url in urls.items()}
        return {**own, **fields, "host": host}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment; ConfigError if a `TRIFORGE_` variable is unknown or has an invalid value."""
        source = os.environ if environ is None else environ
        variables = {
            name.removeprefix("TRIFORGE_").lower(): value
            for name, value in source.items()
            if name.startswith("TRIFORGE_") and value != ""
        }
        return checked(cls, variables, variables=True)

    @property
    def keyed(self) -> bool:
        """Whether APIs require keys."""
        return self.auth == "keys"

    @property
    def own_key(self) -> str:
        """The secret between this deployment's services; empty where no keys are required."""
        return self.service_secret.get_secret_value() if self.keyed else ""

    def require_secret(self) -> None:
        """Raise ConfigError where keys are required and the services' secret is missing or short."""
        secret = self.own_key
        if self.keyed and len(secret) < _SHORTEST:
            given = f"{len(secret)} characters" if secret else "nothing"
            raise ConfigError(
                f"TRIFORGE_SERVICE_SECRET: given {given}, expected at least {_SHORTEST} characters, the same in every "
                "service and worker, because TRIFORGE_AUTH is 'keys'; scripts/write_env.sh writes one"
            )

    def __repr_args__(self) -> Any:
        """Yield the settings for people: passwords in addresses are masked."""
        for name, value in super().__repr_args__():
            yield name, masked(value) if isinstance(value, str) else value

    def has(self, service: str) -> bool:
        """Return whether the deployment has a service, by the name of its address: `reward_model`."""
        return self.url(service) != NOWHERE

    def url(self, service: str) -> str:
        """Return the address of a service; `none` where the deployment has none."""
        further = by_name(self.models).get(service.removesuffix("_model"), NOWHERE)
        return str(getattr(self, f"{service}_url", further))

    def model_url(self, role: Role) -> str:
        """Return the address of a model's policy service; `none` where the deployment has none."""
        return self.url(f"{role}_model")

    def engines_of(self, role: Role) -> str:
        """Return the engines of a model for `triforge up`; empty starts one."""
        return str(getattr(self, f"{role}_engines", by_name(self.model_engines).get(role, "")))

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the services that the deployment has."""
        known = (*SERVICES, *(f"{role}_model" for role in by_name(self.models)))
        return tuple(filter(self.has, known))

    @property
    def trained(self) -> tuple[Role, ...]:
        """The models that runs may train: those with a policy service, except the rewriter."""
        known = ("policy", "reward", *by_name(self.models))
        return tuple(role for role in known if self.model_url(role) != NOWHERE)

    def demand_model(self, role: Role) -> None:
        """Raise ConfigError where the deployment has no service of a model."""
        if self.model_url(role) == NOWHERE:
            raise ConfigError(
                f"models.{role}: this deployment has no policy service of that name: start it with a document that has the "
                f"model, or name the service: TRIFORGE_MODELS={role}=http://host:port"
            )

    @property
    def service_hosts(self) -> frozenset[str]:
        """Hosts of this deployment's services, and those of `own_hosts`."""
        urls = (getattr(self, f"{service}_url") for service in _SERVICES)
        services = (urlsplit(url).hostname for url in (*urls, *by_name(self.models).values()))
        listed = (name.strip().lower().strip("[]") for name in self.own_hosts.split(","))
        return frozenset(name for name in (*services, *listed) if name)

    @property
    def max_body(self) -> int:
        """Largest body of a request for a model in bytes."""
        return self.max_body_mb * 2**20

    @property
    def max_upload(self) -> int:
        """Largest upload to `POST /v1/pools` in bytes."""
        return self.max_upload_mb * 2**20

    def environment(self) -> dict[str, str]:
        """Return the settings as environment variables for a child process, without the key of a person."""
        plain = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            for name, value in self
            if name != "key"
        }
        return {f"TRIFORGE_{name.upper()}": text for name, text in plain.items() if text}
