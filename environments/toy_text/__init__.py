"""gymnasium's toy text games, FrozenLake and Taxi, and a two-armed bandit, in words."""
