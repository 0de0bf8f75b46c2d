"""The orchestrator: take runs, collect groups, train, sync weights, adapt tasks, commit. No torch."""
