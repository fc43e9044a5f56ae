"""Slow, obvious twins of the fast paths."""
