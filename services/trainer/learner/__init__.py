"""One process for one model: batch, gradient, weight version. The only part of the trainer that imports torch."""
