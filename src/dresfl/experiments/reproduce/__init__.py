"""The paper's experiments: a matrix of runs, one JSONL each, and tables and figures made from those alone."""

from dresfl.experiments.published import METHOD_LABELS, METHODS, PAPER, TABLE_DATASETS, recipes

from .figures import curves, draw
from .matrix import Cell, matrix, recipe
from .records import Record, read_records
from .runner import Failure, Watch, run_matrix
from .tables import cell_text, markdown, spreadsheet, table
