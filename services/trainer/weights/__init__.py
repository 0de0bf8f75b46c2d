"""Weights where they lie: complete folders on disk, and shares over the ranks of one learner."""
