"""Adaptation of tasks: the outcome of a group in, changed tasks out; see docs/train.md.

`adapter` counts an outcome and asks a controller (`controllers`) within `limits`. `proposals` writes a proposal with the
models of `endpoints`: `diagnosis`, `rewriter`, `candidates`. `measurement` decides it.
"""
