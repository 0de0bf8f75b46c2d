"""What a model is trained for: losses, what they are corrected and compared with, and the optimiser that follows them.

Knows no streams and no checkpoints: rows in, gradients and measures out.
"""
