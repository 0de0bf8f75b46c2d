"""Arithmetic only: plain numbers or arrays in, numbers or arrays out; nothing here opens a file, a socket or a model.

Formulas, sources and options stand in `docs/algorithms.md`. Begin with `credit`.

what was played, on numbers
  credit         outcomes + votes -> rewards -> advantages, from top to bottom
  estimators/    how rewards are compared, one file each; `advantages` what they share
  judge_targets/ what the reward model is taught of each step, one file each
  penalties      what is taken off a reward; `filters` by spread, and which tasks are rewritten
  unit_tests     where programs and tests judge each other; `imitation` the jobs without a policy gradient
  theory         what votes are worth, intervals; `gaming` an alarm for a judge that is worth less and praises more
  collapse       whether the policy says and earns the same always; `alarms` what is wrong with a step, in words
tasks
  acceptance     whether a rewritten task replaces its parent; `ladder` levels that rise with the policy
tokens, on arrays of any library
  losses/        one file each; `loss_terms` the KL, sums and measures that all share
  off_policy     samples of older weights; `auxiliary` objectives beside the policy gradient
  aggregation    how much a token counts; `schedules` numbers that change over a run
options
  algorithm      the resolved section; `core` its own options, `presets` as data, `registry` parts by name
rows
  packing        into padded rectangles and into updates; `prefix_tree` what begins alike is computed once
  dealing        packed rows into passes, and passes out to ranks
"""
