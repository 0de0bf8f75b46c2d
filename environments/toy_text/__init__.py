"""gymnasium's FrozenLake, and a two-armed bandit, in words."""
