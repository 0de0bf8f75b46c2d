"""RLVE-Gym: four hundred procedural environments, each with a verifier and a controller of its difficulty."""
