"""The paper's experiments: a matrix of runs, one JSONL each, and tables and figures made from those alone."""

from dresfl.experiments.published import METHODS, TABLE_DATASETS, recipes

from .matrix import Cell, matrix, recipe
from .records import Record, read_record, read_records
from .runner import Failure, Watch, run_matrix
from .tables import Table, accuracies, brief, markdown, spreadsheet, table
from .tuning import read_choices, trials, tuned_methods, waves, write_choices
