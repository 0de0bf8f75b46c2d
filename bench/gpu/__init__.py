"""Every figure that needs a GPU, by one command, and the same parts small on a CPU: docs/operate.md#sglang-and-gpus."""
