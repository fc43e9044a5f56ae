"""Runs from configurations: prepare, train, compare, record."""
