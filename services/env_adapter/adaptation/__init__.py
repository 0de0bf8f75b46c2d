"""How tasks change: a group's outcome in, changed tasks out; docs/train.md#how-tasks-change is the reader's guide.

A proposal's life from top to bottom: `adapter` counts the outcome and asks a controller (`controllers`, `ladder`), within
`limits`; `proposals` writes one (`diagnosis`, `rewriter`, `candidates`, asked of `endpoints`); `measurement` decides.
"""
