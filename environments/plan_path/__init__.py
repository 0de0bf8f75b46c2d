"""A planner and a mover cross a grid; see README.md."""
