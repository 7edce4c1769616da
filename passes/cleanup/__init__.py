"""Passes that remove what a graph does not need."""
