"""Tools of MCP servers as the actions of an environment."""
