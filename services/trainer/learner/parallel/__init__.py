"""Ranks of torchrun, and the broadcast of weights to engines."""
