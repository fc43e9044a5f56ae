"""What FedAvg, FedAvg with LightSecAgg and DReS-FL cost, by phase and participant: the paper's complexity tables.

`measure` writes records, `page` and `plot` render them; the command is `dresfl reproduce complexity`.
"""

from .growth import cheaper_after, growth, total
from .measure import FORMAT, measure, read_records
from .page import page, summary, tables
from .phases import METHOD_NAMES, PHASES
from .picture import plot
from .settings import FULL, QUICK, Plan, Setting, Sweep
from .whole_runs import whole_run
