"""Weight sync: which version a pool is to serve, how an engine gets it, how an engine shows that it holds it."""
