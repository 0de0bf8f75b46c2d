"""Shipped fakes and the conformance suite of environments, for authors of adapters and for tests.

check_environment    the contract of environment families
fakes                a sampler, an environment family, an installed package
model_folders        tokenizers; `pictures` image files
"""

from triforge.testing.check_environment import check_environment, not_applicable, require
from triforge.testing.fakes import FAKE_LOGPROB, FakeEnvironment, FakeFamily, FakeGenerate
