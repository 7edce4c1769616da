"""Quantisation: graphs with Q/DQ around products, and what is known of their numbers."""
