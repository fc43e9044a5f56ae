"""Estimators with scikit-learn's conventions, over a simulated federation."""

from .classifier import DresClassifier

__all__ = ["DresClassifier"]
