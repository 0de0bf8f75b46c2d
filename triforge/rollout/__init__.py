"""Episodes: the protocols of environments, models and judges, and the functions that play.

protocols  environments, sampling, judging; `adapting` optional parts of a family
episode    one episode, the K episodes of a group, the judge's jobs; `isolation` gives an environment its own thread
window     the distance by which playing may run ahead of learning
choices    closed choices as a regular expression
seeds      seeds that follow from other seeds
"""
