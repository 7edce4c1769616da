"""Targets and their custom operators."""
