"""The services: programs that are deployed on their own and never import one another."""
