"""One frozen document for a run, one section a service, and the addresses of a deployment.

A run is described by TOML (`load`), by JSON in `POST /v1/runs`, or by both: overrides are laid over the deployment's
own document. Secrets and addresses come from the environment only (`Settings.from_env`), never from the document.
Times are seconds, sizes are tokens or bytes, as the names say.
"""

from triforge.config.base import JsonSchema, Regex, Sampling, Section
from triforge.config.document import (
    as_toml,
    assignment,
    load,
    merge,
    parse,
    read_document,
    with_assignments,
    write_document,
)
from triforge.config.models import ModelSection, ModelsSection
from triforge.config.run_config import RunConfig
from triforge.config.sections import (
    AdaptationSection,
    AlgorithmSection,
    EnvAdapterSection,
    RewardSection,
    RunSection,
)
from triforge.config.settings import Settings
from triforge.config.training import CriticSection, LearnerSection, TrainerSection
