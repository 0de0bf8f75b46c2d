"""Small worlds that tables of numbers learn by the product's own arithmetic: curves in seconds, and no claim on language models."""
