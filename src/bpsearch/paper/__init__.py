"""Experiments: configuration over the library."""
