"""Playing episodes: what an environment, a model and a judge promise, and what is made of them.

protocols  environments, sampling, judging; `adapting` what a family may offer beside
episode    one episode, the K episodes of a group, the judge's jobs; `isolation` gives an environment a thread of its own
window     how far playing may run ahead of learning
choices    closed choices as a regular expression
seeds      that follow from other seeds
"""
