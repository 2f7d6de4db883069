"""Inference: how episodes are valued, and what may be said."""
