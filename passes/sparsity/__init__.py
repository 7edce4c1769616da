"""Weights of which two in four are zero."""
