"""A run again from its record: credit and learner steps, compared number by number."""
