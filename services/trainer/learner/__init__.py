"""The learner as a process: one model, batches from its stream, weight versions and checkpoints out."""
