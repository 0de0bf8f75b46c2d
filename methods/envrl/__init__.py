"""EnvRL: state prediction and inverse dynamics as objectives in addition to the policy gradient (arXiv 2606.17680)."""

from __future__ import annotations

from methods.envrl.options import EnvRLOptions
from triforge.methods import Method

METHOD = Method(
    name="envrl",
    options=EnvRLOptions,
    loop="methods.envrl.loop:EnvRL",
    objective="methods.envrl.learner:Auxiliary",
)
