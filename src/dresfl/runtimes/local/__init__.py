"""The one-process runtime: simulated clients, simulated dropouts, the real protocol."""

from .blocks import Engine
from .driver import LocalFederation
from .dropout import Dropouts, bernoulli, first_feasible_seed, from_trace, no_dropouts, paper
