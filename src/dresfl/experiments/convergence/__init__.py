"""The paper's Theorem 2 beside the bound that holds, both along real runs. docs/explanation/convergence.md has the
proof.
"""

from .bounds import Constants, bound, bound_along, paper_bound
from .cases import CASES, Case
from .records import add_record, finished, read_records
from .run import play
from .tables import COLUMNS, markdown, results, table

__all__ = [
    "CASES",
    "COLUMNS",
    "Case",
    "Constants",
    "add_record",
    "bound",
    "bound_along",
    "finished",
    "markdown",
    "paper_bound",
    "play",
    "read_records",
    "results",
    "table",
]
