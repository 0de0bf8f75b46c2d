"""RLoop: loops of exploring by RL and fine-tuning the loop's first weights on what was solved (arXiv 2511.04285)."""

from __future__ import annotations

from methods.rloop.options import RLoopOptions
from triforge.methods import Method

METHOD = Method(name="rloop", options=RLoopOptions, loop="methods.rloop.loop:RLoop")
