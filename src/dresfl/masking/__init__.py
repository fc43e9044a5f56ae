"""Masks that clients make alike from shared seeds: families of seeds, their certificates, and their expansion."""
