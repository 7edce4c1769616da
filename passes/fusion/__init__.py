"""Passes that make several operators one."""
