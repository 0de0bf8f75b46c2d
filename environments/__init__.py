"""The families that ship: a package each, found by their entry points as a user's own (`triforge.environments.registry`)."""
