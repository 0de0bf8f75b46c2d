"""The household: a text game of one room with six kinds of goals, played in full sentences or in single words."""
