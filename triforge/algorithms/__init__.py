"""Arithmetic only: plain numbers or arrays in, numbers or arrays out; nothing here opens a file, a socket or a model.

Formulas, sources and options stand in `docs/algorithms.md`.

options
  presets        every option in one frozen record; `named` are the presets as data
  combinations   what no preset may be; `unread` options that nothing would read
what was played, on numbers (the orchestrator calls `credit`)
  credit         what every step and every vote of one task's rollouts is worth
  rewards        of a step, a vote, a program, a test; `shapers` what is taken off
  advantages     compared with what else was tried; `estimators` read more of a trajectory than its reward
  unit_tests     where programs and tests judge each other; `imitation` the jobs without a policy gradient
  filters        which tasks train whom, and which are rewritten
  theory         what votes are worth; `intervals` of measured shares
tasks (the adapt worker calls them)
  adaptation     whether a rewritten task replaces its parent; `ladder` levels that move up with the policy
tokens, on arrays of any library (the learner calls them)
  policy_losses  a token; `losses` the KL, sums and ratios that all share; `pairs` whole trajectories
  returns        rewards a token become advantages; `off_policy` samples of older weights
  auxiliary      objectives beside the policy gradient
  aggregation    how much a token counts; `schedules` of step sizes
rows
  packing        into padded rectangles and into updates; `prefix_tree` what begins alike is computed once
  dealing        packed rows into passes, and passes out to ranks
"""
