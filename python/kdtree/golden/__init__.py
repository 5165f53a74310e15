"""Generators of the golden KDTR bundles in tests/golden, one module per op."""
