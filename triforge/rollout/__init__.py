"""Playing episodes: the protocols, one episode and one group, and the window of slots."""
