"""Arithmetic: numbers or arrays in, numbers or arrays out. No file, socket or model is opened here.

Formulas and sources stand at each part. Begin with `credit`.

samples
  credit         outcomes and votes -> rewards -> advantages
  estimators/    how rewards are compared, one file each; `advantages` has their shared parts
  judge_targets/ targets of the reward model, one file each
  penalties      penalties of rewards; `filters` drops groups by their spread
  imitation      jobs without a policy gradient
  theory         the value of votes, with intervals; `paired` means and tests over seeds; `gaming` the alarm for a judge that is gamed; `alarms` in words
tasks
  acceptance     the test of a rewritten task against its parent
tokens, on arrays of any library
  losses/        one file each; `loss_terms` has KL, sums and measures
  off_policy     corrections for samples of older weights
  aggregation    weights of tokens; `schedules` numbers that change over a run
options
  algorithm      the resolved section; `core` its own options, `presets` as data, `registry` parts by name
rows
  packing        rows into padded rectangles and updates; `prefix_tree` shares common beginnings
  dealing        packed rows into passes, passes to ranks
"""
