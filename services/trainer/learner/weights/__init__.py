"""Weight versions as folders: tensors, manifests, checkpoints."""
