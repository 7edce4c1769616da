"""Products in 16-bit floats."""
