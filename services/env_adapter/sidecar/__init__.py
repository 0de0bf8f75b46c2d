"""The sidecar: tasks for another trainer, and the rollouts that it reports."""
