"""Weight sync: which version a pool serves, how an engine gets it, how the engine shows it."""
