"""Quantisation: what is known of the values of a graph, and the passes that place Q/DQ by it."""
