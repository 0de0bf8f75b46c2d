"""Planning of a run on GPUs: arithmetic, without a framework and without a GPU."""
