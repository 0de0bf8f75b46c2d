"""gymnasium's toy text games, FrozenLake and Taxi, in words."""
