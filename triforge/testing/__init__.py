"""Shipped fakes and conformance suites: what authors of adapters and our own tests use in place of the real thing.

check_environment    the contract of environment families, walked; `require` its results
fakes                a sampler, a judge, an environment family
model_folders        tokenizers; `pictures` image files
entry_points         environment families that are not installed
"""

from triforge.testing.check_environment import check_environment, not_applicable, require
from triforge.testing.fakes import (
    FAKE_LOGPROB,
    FakeEnvironment,
    FakeFamily,
    FakeGenerate,
    FakeTokens,
)
