"""Calls of tools in a model's answers, one file for each format in which models write them."""
