"""Inference engines behind one protocol, and the pool that chooses among them."""
