"""A causal language model as the learner uses it: log-probabilities, adapters, packed rows, images."""
