"""Export recipes, one file an architecture family."""
