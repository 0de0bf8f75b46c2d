"""Addresses and secrets of a deployment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

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


class Settings(Section):
    """Addresses and secrets of a deployment, from environment variables named `TRIFORGE_<FIELD>`."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Valkey or Redis."""
    database_url: str = "sqlite:///var/triforge.sqlite"
    """SQLAlchemy URL of the store."""
    artifacts_url: str = "var/artifacts"
    """Folder, or URL and a folder for weights: `s3://bucket/prefix#/data/artifacts` (extra `s3`)."""
    config: str = ""
    """TOML document that runs start from."""
    host: str = "127.0.0.1"
    """Address the APIs listen on."""
    metrics_port: int = Field(0, ge=0, le=65_535)
    """Port of `/metrics` and `/healthz` of a worker or learner; 0 serves none."""
    log: Literal["text", "json"] = "text"
    """Form of log lines; the containers set `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged; `debug` also logs requests and what libraries say."""
    otlp_endpoint: str = ""
    """Where traces go (OTLP over HTTP; extra `otel`); empty: where OpenTelemetry's variables say."""
    policy_model_url: Url = "http://127.0.0.1:8001"
    """Policy service, role policy."""
    agents_url: OptionalUrl = NOWHERE
    """The same service as agents in sessions reach it (`https://triforge.example.com`), where that is
    another address; `none`: the one above."""
    reward_model_url: OptionalUrl = "http://127.0.0.1:8011"
    """Policy service, role reward; `none` where no run asks for votes."""
    rewriter_model_url: OptionalUrl = "http://127.0.0.1:8021"
    """Policy service, role rewriter, or any OpenAI-compatible URL; `#name` names its model; `none`
    where no run has tasks rewritten."""
    diagnosis_url: str = ""
    """Model that explains failures, addressed likewise; empty asks the one that rewrites."""
    solver_url: str = ""
    """Stronger policy that proves rewrites by solving them, addressed likewise; empty has none."""
    encoder_url: OptionalUrl = NOWHERE
    """Model that embeds screenshots and texts (`POST /v1/embeddings`), for `reward.kind = "vlm_contrast"`; `none` where no
    run compares them."""
    models: ByName = ""
    """Policy services of further models of a document, `name=http://host:port` each, separated by commas."""
    model_engines: ByName = ""
    """Their engines for `triforge up`, written likewise, a name once an engine; those of a name that is missing are started."""
    reward_url: OptionalUrl = "http://127.0.0.1:8002"
    """Reward service; `none` likewise."""
    env_adapter_url: Url = "http://127.0.0.1:8003"
    """env_adapter service."""
    trainer_url: Url = "http://127.0.0.1:8004"
    """Trainer service."""
    adapt_workers: bool = True
    """Whether adapt workers are part of the deployment; without them no run has tasks changed."""
    dashboard_url: Url = "http://127.0.0.1:8005"
    """Dashboard: the pages that people look at."""
    engines: str = "http://127.0.0.1:9001"
    """Comma-separated engines of a policy service: `http://host:port`, `dns+http://name:port` for
    one a resolved address, or a lone `router+http://host:port` for SGLang's router."""
    policy_engines: str = ""
    """Engines for `triforge up`, written like `TRIFORGE_ENGINES`; empty starts a local one."""
    reward_engines: str = ""
    """Likewise for the role reward."""
    rewriter_engines: str = ""
    """Likewise for the role rewriter."""
    policy_engine_port: Port = 9001
    """Port of the local engine that `triforge up` starts for the role policy."""
    reward_engine_port: Port = 9011
    """Likewise for the role reward."""
    rewriter_engine_port: Port = 9021
    """Likewise for the role rewriter."""
    router_workers: str = ""
    """Engines behind a router, as `http://` or `dns+http://`; empty asks the router for them."""
    engine_in_flight: Positive = 512
    """Most samples in flight at one engine; further ones wait."""
    max_waiting: Positive = 4096
    """Most samples that wait in a policy service; more are answered 429."""
    queue_s: Seconds = 60.0
    """A request that waits longer for an engine is answered 429."""
    request_s: Seconds = 600.0
    """An engine's answer that takes longer has failed; callers wait `TRIFORGE_QUEUE_S` more."""
    drain_s: Seconds = 10.0
    """How long a policy service that ends lets requests run on."""
    role: Role = "policy"
    """Model of a policy service: policy, reward, rewriter, or the name of a further one."""
    model: str = ""
    """Model folder that a policy service serves at start."""
    api_key: SecretStr = SecretStr("")
    """Key that the engines ask for."""
    admin_api_key: SecretStr = SecretStr("")
    """Key for the engines' weight and pause routes."""
    auth: Literal["auto", "open", "keys"] = "auto"
    """`keys` asks for API keys and the services' secret at every API; `auto` asks for none and
    listens on this machine only; `open` asks for none wherever it listens."""
    service_secret: SecretStr = SecretStr("")
    """What services and workers show each other where keys are asked for; 24 characters or more."""
    key: SecretStr = SecretStr("")
    """API key that the command line and other clients send."""
    own_hosts: str = ""
    """Comma-separated hosts that are this deployment's own, beside those that need not be named
    (docs/operate.md#security): addresses without a path are sent the services' secret there and nowhere
    else, and where no keys are asked for the APIs answer under these names, too."""
    env_egress: str = ""
    """What tasks and options of pools may make the workers reach: `any`, `public`, `docker`, hosts,
    addresses and networks, separated by commas (docs/environments.md). Empty: `public` where keys
    are asked for, else `any`."""
    plugins: str = ""
    """Modules of yours that pools and runs may name as `module:NAME`, separated by commas: families, reward
    functions, estimators and the like (docs/operate.md#security). Empty: none where keys are asked for, else `any`."""
    mcp_servers: str = ""
    """JSON file of the MCP servers whose tools tasks of the family `mcp` may name (docs/operate.md#security)."""
    containers: str = ""
    """Docker engine for tasks of the family `harbor` that need a container, such as
    `unix:///var/run/docker.sock`; empty refuses them (docs/operate.md#security)."""
    containers_network: str = "none"
    """Docker's network for the `RUN` lines of such tasks. What a model's script or a test runs has none."""
    cors_origins: str = ""
    """Comma-separated web origins whose pages may ask the APIs; empty allows none."""
    handover: Literal["disk", "distributed"] = "disk"
    """How new weights reach the engines; their folder is written and kept in any case."""
    handover_backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Transport of a broadcast; `auto` is nccl for a learner on a GPU, gloo for one on a CPU."""
    handover_host: str = "127.0.0.1"
    """Name under which policy services and engines reach a learner that broadcasts."""
    handover_timeout_s: Seconds = 300.0
    """A broadcast that takes longer is given up for the engine, and the folder is read; an engine that takes longer
    for a folder or an adapter has failed."""
    handover_group: Positive = 8
    """Most engines that share a broadcast: the learner sends once for all of them, and one that fails in it sends all of them
    to the folder."""
    shared_engines: bool = False
    """Of a policy service: its engines serve other models as well, all of them adapters over one base, which nobody changes
    (`models.NAME.engines_of`; `triforge up` sets it)."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """What becomes of running requests while weights change; `in_place` not with a router."""
    weights_check: Literal["contents", "sizes"] = "contents"
    """What a policy service reads of a new folder before any engine does."""
    weights_verify: Literal["tensors", "info"] = "tensors"
    """What an engine has to show after an update: sampled tensors, or its version only."""
    max_body_mb: Positive = 64
    """MiB of a body that asks a model (`/v1/generate`, `/v1/chat/completions`, `/v1/completions`,
    `/v1/judge`); a larger one is answered with 413. Bodies of other routes have less."""
    max_upload_mb: Positive = 256
    """MiB of an upload to `POST /v1/pools`, which is read from disk."""
    session_days: Positive = 30
    """Days after a session's time is over for which its turns are kept; records of runs have theirs for good."""
    lease_s: Seconds = 10.0
    """Lease of a job; renewed while a worker works."""
    resend_s: Seconds = 20.0
    """A job that nobody started for so long is sent again."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the environment; ConfigError if a `TRIFORGE_` variable is unknown or impossible."""
        source = os.environ if environ is None else environ
        given = {
            name.removeprefix("TRIFORGE_").lower(): value
            for name, value in source.items()
            if name.startswith("TRIFORGE_") and value != ""
        }
        return checked(cls, given, variables=True)

    @property
    def keyed(self) -> bool:
        """Whether APIs ask for keys."""
        return self.auth == "keys"

    @property
    def own_key(self) -> str:
        """What this deployment's services show each other; empty where no keys are asked for."""
        return self.service_secret.get_secret_value() if self.keyed else ""

    def require_secret(self) -> None:
        """ConfigError where keys are asked for and the services' secret is missing or short."""
        secret = self.own_key
        if self.keyed and len(secret) < _SHORTEST:
            given = f"{len(secret)} characters" if secret else "nothing"
            raise ConfigError(
                f"TRIFORGE_SERVICE_SECRET: given {given}, expected at least {_SHORTEST} characters, the same in every "
                "service and worker, because TRIFORGE_AUTH is 'keys'; scripts/write_env.sh writes one"
            )

    def __repr_args__(self) -> Any:
        """What people see of the settings: passwords in addresses are masked."""
        for name, value in super().__repr_args__():
            yield name, masked(value) if isinstance(value, str) else value

    def has(self, service: str) -> bool:
        """Whether the deployment has a service, by the name of its address: `reward_model`."""
        return self.url(service) != NOWHERE

    def url(self, service: str) -> str:
        """Address of a service; `none` where the deployment has none."""
        further = by_name(self.models).get(service.removesuffix("_model"), NOWHERE)
        return str(getattr(self, f"{service}_url", further))

    def model_url(self, role: Role) -> str:
        """Address of a model's policy service; `none` where the deployment has none."""
        return self.url(f"{role}_model")

    def engines_of(self, role: Role) -> str:
        """Engines of a model for `triforge up`; empty starts one."""
        return str(getattr(self, f"{role}_engines", by_name(self.model_engines).get(role, "")))

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the services that the deployment has."""
        known = (*SERVICES, *(f"{role}_model" for role in by_name(self.models)))
        return tuple(filter(self.has, known))

    @property
    def trained(self) -> tuple[Role, ...]:
        """The models that runs may train: those with a policy service, but for the rewriter."""
        known = ("policy", "reward", *by_name(self.models))
        return tuple(role for role in known if self.model_url(role) != NOWHERE)

    def demand_model(self, role: Role) -> None:
        """ConfigError where the deployment has no service of a model."""
        if self.model_url(role) == NOWHERE:
            raise ConfigError(
                f"models.{role}: this deployment has no policy service of that name: start it with a document that has the "
                f"model, or name the service: TRIFORGE_MODELS={role}=http://host:port"
            )

    @property
    def service_hosts(self) -> frozenset[str]:
        """Hosts where services of this deployment are, and those that `own_hosts` lists."""
        urls = (getattr(self, f"{service}_url") for service in _SERVICES)
        services = (urlsplit(url).hostname for url in (*urls, *by_name(self.models).values()))
        listed = (name.strip().lower().strip("[]") for name in self.own_hosts.split(","))
        return frozenset(name for name in (*services, *listed) if name)

    @property
    def max_body(self) -> int:
        """Bytes of a body that asks a model."""
        return self.max_body_mb * 2**20

    @property
    def max_upload(self) -> int:
        """Bytes of an upload to `POST /v1/pools`."""
        return self.max_upload_mb * 2**20

    def environment(self) -> dict[str, str]:
        """The settings as environment variables for a child process; the key of a person is none of its business."""
        plain = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            for name, value in self
            if name != "key"
        }
        return {f"TRIFORGE_{name.upper()}": text for name, text in plain.items() if text}
