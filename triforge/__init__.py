"""triforge: the policy acts, the reward model judges, the tasks adapt; all three improve in a closed loop.

This package is the library: every service in `services/` enters it, it enters none. `docs/architecture.md`, "Map of the library",
says of each part what it is, who uses it, and where its contract stands.
"""

__version__ = "0.1.0"
