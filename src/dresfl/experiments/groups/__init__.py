"""More clients than one code takes: groups of them, or a committee. What it costs, what it protects, what it loses."""

from .design import OPENINGS, Design, Opening, Population, blinding, design, least_colluders
from .draws import colluder_draws, dropout_draws
from .training import Grouping, separate_models, train_in_groups
