"""Methods: one package a paper, found by the entry point `triforge.methods`."""
