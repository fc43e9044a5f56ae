"""Estimators with scikit-learn's conventions, over a simulated federation."""

from .classifier import DresClassifier
from .regressor import DresRegressor

__all__ = ["DresClassifier", "DresRegressor"]
