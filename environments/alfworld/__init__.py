"""ALFWorld's own engine, in processes of its own, for a user's game files and for games of the household."""
