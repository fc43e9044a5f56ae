"""dresfl: dropout-resilient, secure federated learning on Lagrange-coded data."""

__version__ = "0.1.0"
