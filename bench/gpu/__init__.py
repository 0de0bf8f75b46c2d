"""Every figure that needs a GPU, by one command, and the same parts small on a CPU: docs/gpu.md."""
