"""A small desktop: a window manager and a terminal on a screen of their own, with tasks about files and settings."""
