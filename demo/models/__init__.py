"""Models for first runs and the demo: tiny models made here, SmolLM2-135M from its wheel."""
