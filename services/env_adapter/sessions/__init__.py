"""Sessions of agents: groups that a user's own program plays."""
