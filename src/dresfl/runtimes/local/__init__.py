"""The simulation: simulated clients and dropouts, the real protocol, in one process or spread over ranks."""

from .blocks import Engine
from .channels import ChannelFederation
from .driver import LocalFederation
from .dropout import Dropouts, bernoulli, first_feasible_seed, from_trace, no_dropouts, paper
from .ranks import Ranks
