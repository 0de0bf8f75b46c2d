"""Sokoban: boxes that can be pushed and never pulled; boards made by playing backwards, solved by breadth-first search."""
