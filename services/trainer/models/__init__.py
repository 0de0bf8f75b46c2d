"""Models as a learner uses them: token batches in, log-probabilities, entropies and values of chosen tokens out."""
